//! One direction ends while the other goes on: in both orders.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::Instant;

use super::socket;

/// Ports of the server, counted from its first.
const CLIENT_FIRST: u16 = 0;
const SERVER_FIRST: u16 = 1;
const REPORT: u16 = 2;

/// Three ports: the client ends first and gets the byte count and sum back; the
/// server ends first and keeps reading; what it read so is reported on the third.
///
/// # Errors
/// When a port is taken.
pub fn serve(port: u16, bytes: usize) -> Result<()> {
    let read_after_end = Arc::new(AtomicU64::new(0));
    let client_first = socket::listen(port + CLIENT_FIRST)?;
    let server_first = socket::listen(port + SERVER_FIRST)?;
    let report = socket::listen(port + REPORT)?;
    thread::spawn(move || socket::serve(&client_first, answer_at_the_end));
    let count = Arc::clone(&read_after_end);
    thread::spawn(move || {
        socket::serve(&server_first, move |stream| {
            end_then_read(stream, bytes, &count)
        })
    });
    socket::serve(&report, move |mut stream| {
        writeln!(stream, "{}", read_after_end.load(Ordering::SeqCst))
    })
}

fn answer_at_the_end(mut stream: TcpStream) -> io::Result<()> {
    let (bytes, sum) = read_all(&mut stream)?;
    writeln!(stream, "{bytes} {sum}")
}

fn end_then_read(mut stream: TcpStream, bytes: usize, count: &AtomicU64) -> io::Result<()> {
    stream.write_all(&pattern(bytes))?;
    stream.shutdown(Shutdown::Write)?;
    let (read, _) = read_all(&mut stream)?;
    count.store(read, Ordering::SeqCst);
    Ok(())
}

fn read_all(stream: &mut TcpStream) -> io::Result<(u64, u64)> {
    let mut buffer = vec![0; 64 * 1024];
    let (mut bytes, mut sum) = (0_u64, 0_u64);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok((bytes, sum)),
            read => {
                bytes += read as u64;
                sum = buffer[..read].iter().fold(sum, |sum, byte| add(sum, *byte));
            }
        }
    }
}

fn add(sum: u64, byte: u8) -> u64 {
    sum.wrapping_mul(31).wrapping_add(u64::from(byte))
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| u8::try_from(at % 251).expect("below 251"))
        .collect()
}

/// The client of both orders.
///
/// # Errors
/// When a byte is missing or wrong, or an end did not pass.
pub fn check(host: &str, port: u16, bytes: usize, limit: Duration) -> Result<()> {
    client_first(&format!("{host}:{}", port + CLIENT_FIRST), bytes, limit)
        .context("client ends first")?;
    let report = format!("{host}:{}", port + REPORT);
    server_first(
        &format!("{host}:{}", port + SERVER_FIRST),
        &report,
        bytes,
        limit,
    )
    .context("server ends first")
}

fn client_first(target: &str, bytes: usize, limit: Duration) -> Result<()> {
    let mut stream = socket::connect(target, limit).context("connect")?;
    let data = pattern(bytes);
    stream.write_all(&data).context("write")?;
    stream
        .shutdown(Shutdown::Write)
        .context("end our direction")?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .context("read the answer")?;
    let sum = data.iter().fold(0, |sum, byte| add(sum, *byte));
    ensure!(
        answer == format!("{bytes} {sum}\n"),
        "the answer was {answer:?}"
    );
    Ok(())
}

fn server_first(target: &str, report: &str, bytes: usize, limit: Duration) -> Result<()> {
    let mut stream = socket::connect(target, limit).context("connect")?;
    let mut received = Vec::new();
    stream
        .read_to_end(&mut received)
        .context("read to the server's end")?;
    ensure!(
        received == pattern(bytes),
        "{} of {bytes} bytes, or wrong ones",
        received.len()
    );
    let after = bytes / 2 + 1;
    stream
        .write_all(&pattern(after))
        .context("write after the server's end")?;
    stream
        .shutdown(Shutdown::Write)
        .context("end our direction")?;
    let deadline = Instant::now() + limit;
    loop {
        let mut text = String::new();
        socket::connect(report, limit)?
            .read_to_string(&mut text)
            .context("read the report")?;
        if text.trim() == after.to_string() {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the server read {} of {after} bytes",
            text.trim()
        );
        thread::sleep(Duration::from_millis(20));
    }
}
