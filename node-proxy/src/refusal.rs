//! How a client learns that its connection was refused.
//!
//! This is the one place where the node proxy looks at an application's bytes:
//! the first ones of a connection that it refuses, and only to answer HTTP with
//! a status and a reason. The client learns a category and an id; the policy's
//! name stays in our log, metric and status, joined by the id.

mod http2;

use std::fmt;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::socket::AbortOnDrop;

/// How long the client's first bytes are waited for. A client that speaks first
/// has sent them already; one that waits for a server's greeting gets its RST
/// without much delay.
const PEEK_LIMIT: Duration = Duration::from_millis(200);
/// How long the answer may take to be read, so that no RST overtakes it.
const LINGER_LIMIT: Duration = Duration::from_secs(1);
/// What is read and thrown away meanwhile.
const LINGER_BYTES_MAX: usize = 256 * 1024;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HTTP1_METHODS: [&[u8]; 9] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"CONNECT ",
    b"OPTIONS ",
    b"TRACE ",
    b"PATCH ",
];

/// What the client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Category {
    /// A policy says no.
    Policy,
    /// There is no safe way.
    Unavailable,
}

impl Category {
    fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Unavailable => "unavailable",
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Policy => StatusCode::FORBIDDEN,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// PERMISSION_DENIED or UNAVAILABLE.
    pub(crate) fn grpc_status(self) -> &'static str {
        match self {
            Self::Policy => "7",
            Self::Unavailable => "14",
        }
    }
}

/// One refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) category: Category,
    pub(crate) id: u64,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; id={:016x}", self.category.as_str(), self.id)
    }
}

impl Refusal {
    /// The value of the reason header.
    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("invariant: letters, digits and '; id='")
    }

    /// For people who look at the answer.
    pub(crate) fn text(&self) -> String {
        let why = match self.category {
            Category::Policy => "connection refused by policy",
            Category::Unavailable => "no safe way to the destination",
        };
        format!("{why} (id {:016x})\n", self.id)
    }
}

/// What the first bytes of a client are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    Http1 {
        head: bool,
    },
    Http2,
    Other,
    /// Cannot be told yet.
    Short,
}

fn opening(bytes: &[u8]) -> Opening {
    let agrees = |expected: &[u8]| {
        let n = bytes.len().min(expected.len());
        bytes[..n] == expected[..n]
    };
    if agrees(HTTP2_PREFACE) {
        return if bytes.len() >= HTTP2_PREFACE.len() {
            Opening::Http2
        } else {
            Opening::Short
        };
    }
    match HTTP1_METHODS.iter().find(|method| agrees(method)) {
        Some(method) if bytes.len() >= method.len() => Opening::Http1 {
            head: *method == b"HEAD ",
        },
        Some(_) => Opening::Short,
        None => Opening::Other,
    }
}

/// Ends a refused connection: with an answer where the client speaks HTTP, with
/// a RST otherwise.
pub(crate) async fn answer(mut socket: AbortOnDrop, refusal: Refusal) {
    match peek(&socket).await {
        Opening::Http1 { head } => {
            if answer_http1(&mut socket, &refusal, head).await.is_ok() {
                socket.finish();
            }
        }
        Opening::Http2 => {
            if http2::answer(&mut socket, &refusal).await.is_ok() {
                linger(&mut socket).await;
                socket.finish();
            }
        }
        Opening::Other | Opening::Short => {}
    }
}

async fn peek(socket: &TcpStream) -> Opening {
    let deadline = Instant::now() + PEEK_LIMIT;
    let mut bytes = [0; HTTP2_PREFACE.len()];
    let mut seen = 0;
    loop {
        match timeout_at(deadline, socket.peek(&mut bytes)).await {
            Ok(Ok(n)) if n > seen => {
                seen = n;
                match opening(&bytes[..n]) {
                    Opening::Short => {}
                    known => return known,
                }
            }
            // The same bytes again: the socket stays readable, so look again
            // after a moment and not at once.
            Ok(Ok(n)) if n > 0 => {
                let soon = Instant::now() + Duration::from_millis(10);
                if soon >= deadline {
                    return Opening::Short;
                }
                sleep_until(soon).await;
            }
            _ => return Opening::Short,
        }
    }
}

async fn answer_http1(
    socket: &mut TcpStream,
    refusal: &Refusal,
    head: bool,
) -> Result<(), std::io::Error> {
    let status = refusal.category.status();
    let body = refusal.text();
    let mut answer = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
         connection: close\r\nx-culvert-reason: {refusal}\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        body.len(),
    );
    if !head {
        answer.push_str(&body);
    }
    let sent = timeout(LINGER_LIMIT, async {
        socket.write_all(answer.as_bytes()).await?;
        socket.shutdown().await
    });
    sent.await??;
    linger(socket).await;
    Ok(())
}

/// Reads what the client still sends: closing with unread data would send a RST,
/// which destroys the answer on its way.
async fn linger(socket: &mut TcpStream) {
    let deadline = Instant::now() + LINGER_LIMIT;
    let mut bytes = [0; 1024];
    let mut left = LINGER_BYTES_MAX;
    while left > 0 {
        match timeout_at(deadline, socket.read(&mut bytes)).await {
            Ok(Ok(n)) if n > 0 => left = left.saturating_sub(n),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_is_recognised() {
        for (bytes, expected) in [
            (&b""[..], Opening::Short),
            (b"GE", Opening::Short),
            (b"P", Opening::Short),
            (b"PRI * HTTP/2.0\r\n", Opening::Short),
            (HTTP2_PREFACE, Opening::Http2),
            (b"GET / HTTP/1.1\r\n", Opening::Http1 { head: false }),
            (b"HEAD / HTTP/1.0\r\n", Opening::Http1 { head: true }),
            (b"get / HTTP/1.1\r\n", Opening::Other),
            (b"\x16\x03\x01", Opening::Other),
            (b"*1\r\n$4\r\nPING", Opening::Other),
            (b"PRIVMSG", Opening::Other),
        ] {
            assert_eq!(opening(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_refusal_names_category_and_id_alone() {
        let refusal = Refusal {
            category: Category::Policy,
            id: 0xabc,
        };
        assert_eq!(refusal.header(), "policy; id=0000000000000abc");
        assert!(refusal.text().contains("0000000000000abc"));
    }
}
