//! As many bytes as the way carries: a sink, a source, and a client that measures.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::Instant;

use super::socket;

/// Big enough that system calls are not what is measured.
const BUFFER_BYTES: usize = 256 * 1024;

/// Which way the bytes go, seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// Client to server.
    Up,
    /// Server to client.
    Down,
}

/// What the client measured.
#[derive(Debug, Serialize, serde::Deserialize)]
pub struct Throughput {
    /// 10⁹ bits a second, over all streams.
    pub gbps: f64,
}

/// A sink on `port` (answers with the number of bytes once the client ends) and
/// a source on the next port.
///
/// # Errors
/// When a port is taken.
pub fn serve(port: u16) -> Result<()> {
    let sink = socket::listen(port)?;
    let source = socket::listen(port + 1)?;
    thread::spawn(move || socket::serve(&source, pour));
    socket::serve(&sink, swallow)
}

fn swallow(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0_u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => return writeln!(stream, "{total}"),
            read => total += read as u64,
        }
    }
}

fn pour(mut stream: TcpStream) -> io::Result<()> {
    let buffer = vec![0xa5; BUFFER_BYTES];
    loop {
        stream.write_all(&buffer)?;
    }
}

/// Moves bytes for some seconds over some streams.
///
/// # Errors
/// When a stream breaks.
pub fn measure(
    host: &str,
    port: u16,
    direction: Direction,
    streams: usize,
    time: Duration,
) -> Result<Throughput> {
    let port = if direction == Direction::Up {
        port
    } else {
        port + 1
    };
    let target = format!("{host}:{port}");
    let start = Instant::now();
    let workers: Vec<_> = (0..streams)
        .map(|_| {
            let target = target.clone();
            thread::spawn(move || match direction {
                Direction::Up => up(&target, start + time),
                Direction::Down => down(&target, start + time),
            })
        })
        .collect();
    let mut bytes = 0;
    for worker in workers {
        bytes += worker
            .join()
            .map_err(|_| anyhow::anyhow!("a stream panicked"))??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let gbps = bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9;
    Ok(Throughput { gbps })
}

fn up(target: &str, until: Instant) -> Result<u64> {
    let mut stream = socket::connect(target, Duration::from_secs(30)).context("connect")?;
    let buffer = vec![0xa5; BUFFER_BYTES];
    while Instant::now() < until {
        stream.write_all(&buffer).context("write")?;
    }
    stream.shutdown(Shutdown::Write).context("end")?;
    let mut total = String::new();
    stream
        .read_to_string(&mut total)
        .context("read the count")?;
    total.trim().parse().context("count")
}

fn down(target: &str, until: Instant) -> Result<u64> {
    let mut stream = socket::connect(target, Duration::from_secs(30)).context("connect")?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total = 0;
    while Instant::now() < until {
        match stream.read(&mut buffer).context("read")? {
            0 => anyhow::bail!("the source ended"),
            read => total += read as u64,
        }
    }
    Ok(total)
}
