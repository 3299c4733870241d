//! A WebSocket echo server and client, only as much of RFC 6455 as they need:
//! the upgrade, masked text frames with all three length forms, close.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::sha1::sha1;
use super::socket;

const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;

/// Serves the echo.
///
/// # Errors
/// When the port is taken.
pub fn serve(port: u16) -> Result<()> {
    let listener = socket::listen(port)?;
    socket::serve(&listener, echo)
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let key = header(&read_head(&mut reader)?, "sec-websocket-key").unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {}\r\n\r\n",
        accept(&key)
    );
    stream.write_all(answer.as_bytes())?;
    loop {
        let (kind, payload) = read_frame(&mut reader)?;
        stream.write_all(&frame(kind, &payload, None))?;
        if kind == CLOSE {
            return Ok(());
        }
    }
}

fn accept(key: &str) -> String {
    STANDARD.encode(sha1(format!("{key}{MAGIC}").as_bytes()))
}

fn read_head(reader: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name)
            .then(|| value.trim().to_owned())
    })
}

fn frame(kind: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut bytes = vec![kind];
    match payload.len() {
        short @ 0..126 => bytes.push(masked | u8::try_from(short).expect("below 126")),
        middle @ 126..65536 => {
            bytes.push(masked | 126);
            bytes.extend(u16::try_from(middle).expect("below 65536").to_be_bytes());
        }
        long => {
            bytes.push(masked | 127);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    let mask = mask.inspect(|mask| bytes.extend(mask)).unwrap_or_default();
    bytes.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

fn read_frame(reader: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    reader.read_exact(&mut head)?;
    let length = match head[1] & 0x7f {
        126 => u64::from(u16::from_be_bytes(read(reader)?)),
        127 => u64::from_be_bytes(read(reader)?),
        short => u64::from(short),
    };
    let mask = if head[1] & 0x80 == 0 {
        [0; 4]
    } else {
        read(reader)?
    };
    let mut payload = Vec::new();
    reader.take(length).read_to_end(&mut payload)?;
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Ok((head[0], payload))
}

fn read<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Upgrades, sends texts of all three length forms and closes.
///
/// # Errors
/// When the upgrade is refused or an echo differs.
pub fn check(target: &str, limit: Duration) -> Result<()> {
    let mut stream = socket::connect(target, limit).context("connect")?;
    let mut reader = BufReader::new(stream.try_clone().context("clone")?);
    let key = STANDARD.encode(*b"sixteen bytes ok");
    let request = format!(
        "GET /chat HTTP/1.1\r\nHost: {target}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).context("upgrade")?;
    let head = read_head(&mut reader).context("answer to the upgrade")?;
    ensure!(
        head.starts_with("HTTP/1.1 101"),
        "the upgrade was refused: {head}"
    );
    ensure!(
        header(&head, "sec-websocket-accept") == Some(accept(&key)),
        "wrong accept: {head}"
    );
    for length in [5, 300, 100_000] {
        let text = "wave ".repeat(length / 5);
        stream
            .write_all(&frame(TEXT, text.as_bytes(), Some([1, 2, 3, 4])))
            .context("text")?;
        let (kind, payload) = read_frame(&mut reader).context("echo")?;
        ensure!(
            kind == TEXT && payload == text.as_bytes(),
            "a text of {length} bytes differs"
        );
    }
    stream
        .write_all(&frame(CLOSE, &[], Some([9, 9, 9, 9])))
        .context("close")?;
    let (kind, _) = read_frame(&mut reader).context("close")?;
    ensure!(kind == CLOSE, "the close was not answered");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_of_the_rfc() {
        assert_eq!(
            accept("dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn frames_of_every_length_read_back() {
        for length in [0, 1, 125, 126, 127, 65535, 65536] {
            let payload = vec![7; length];
            let bytes = frame(TEXT, &payload, Some([1, 2, 3, 4]));
            let (kind, read) = read_frame(&mut &bytes[..]).expect("a whole frame");
            assert_eq!((kind, read.len()), (TEXT, length));
            assert_eq!(read, payload);
        }
    }
}
