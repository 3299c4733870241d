//! Sockets that the programs share.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// Listens on a port of both address families, or of the one that there is.
///
/// # Errors
/// When the port is taken.
pub fn listen(port: u16) -> Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .with_context(|| format!("listen on port {port}"))
}

/// Accepts for ever and serves each connection on a thread of its own.
///
/// # Errors
/// When accepting fails for another reason than a peer that went away.
pub fn serve(
    listener: &TcpListener,
    handle: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) -> Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error).context("accept"),
        };
        let handle = handle.clone();
        thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(move || {
                // A client may leave at any time; that ends its connection only.
                let _ = stream.set_nodelay(true).and_then(|()| handle(stream));
            })
            .context("start a thread")?;
    }
}

/// Connects to `name:port`, trying each of its addresses.
///
/// # Errors
/// The last address's error.
pub fn connect(target: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{target} has no address"));
    for address in target.to_socket_addrs()? {
        match connect_to(address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to one address; reads and writes have the same limit.
///
/// # Errors
/// When the peer refuses or does not answer in time.
pub fn connect_to(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// Whether the file that tells a program to stop has appeared.
#[must_use]
pub fn told_to_stop(file: Option<&Path>) -> bool {
    file.is_some_and(Path::exists)
}
