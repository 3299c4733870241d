//! A line protocol that shows who speaks to whom: the server greets with its own
//! name and the client's address, then sends every byte back. With server-first
//! on, the greeting comes before the client says anything.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::socket;

/// Serves `server NAME peer ADDRESS local ADDRESS` and then an echo that ends
/// its own direction when the client ends its.
///
/// # Errors
/// When the port is taken.
pub fn serve(port: u16, name: &str) -> Result<()> {
    let listener = socket::listen(port)?;
    let name = name.to_owned();
    socket::serve(&listener, move |stream| greet_and_echo(stream, &name))
}

fn greet_and_echo(mut stream: TcpStream, name: &str) -> io::Result<()> {
    let peer = stream.peer_addr()?;
    let local = stream.local_addr()?;
    let greeting = format!(
        "server {name} peer {} local {}\n",
        peer.ip().to_canonical(),
        local.ip().to_canonical()
    );
    stream.write_all(greeting.as_bytes())?;
    echo(&mut stream)
}

/// Sends everything back; ends its own direction when the client ends its.
///
/// # Errors
/// When the connection breaks.
pub fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.shutdown(Shutdown::Write),
            read => stream.write_all(&buffer[..read])?,
        }
    }
}

/// What one conversation showed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Greeting {
    /// The server's name.
    pub server: String,
    /// The client's address as the server saw it.
    pub peer: String,
    /// The server's own address.
    pub local: String,
}

impl std::str::FromStr for Greeting {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["server", server, "peer", peer, "local", local] = words[..] else {
            anyhow::bail!("not a greeting: {line:?}");
        };
        Ok(Self {
            server: server.into(),
            peer: peer.into(),
            local: local.into(),
        })
    }
}

/// Connects, reads the greeting and sends a line to and fro.
///
/// # Errors
/// When the connection is refused, breaks, or the answer is not the line.
pub fn talk(target: &str, limit: Duration) -> Result<Greeting> {
    let mut stream = socket::connect(target, limit).context("connect")?;
    let mut lines = BufReader::new(stream.try_clone().context("clone")?);
    let mut greeting = String::new();
    lines
        .read_line(&mut greeting)
        .context("read the greeting")?;
    ensure!(!greeting.is_empty(), "closed before the greeting");
    let greeting = greeting.parse()?;
    stream.write_all(b"over the hills\n").context("write")?;
    let mut answer = String::new();
    lines.read_line(&mut answer).context("read the echo")?;
    ensure!(answer == "over the hills\n", "the echo was {answer:?}");
    Ok(greeting)
}
