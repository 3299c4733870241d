//! The netlink socket: bytes out, answers in.
//!
//! The kernel handles a request while it is sent, so every answer is there when
//! `send` returns and nothing here ever waits.

use std::io;

use netlink_packet_core::NlasIterator;
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};

/// The netlink socket failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} the nf_tables netlink socket")]
pub struct TransportError {
    step: &'static str,
    #[source]
    source: io::Error,
}

/// One message of the kernel.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The request with this number succeeded (errno 0) or failed.
    Status {
        sequence: u32,
        errno: i32,
        detail: Option<String>,
    },
    /// An object: what stands behind the netfilter header.
    Object { body: Vec<u8> },
    /// The end of a dump.
    Done,
    /// The dump ran into a change and must be asked for again.
    Interrupted,
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NETLINK_HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;
const FLAG_INTERRUPTED: u16 = 0x10;
const FLAG_ANSWER_ATTRIBUTES: u16 = 0x200;
const ATTRIBUTE_MESSAGE: u16 = 1;
/// A whole service map goes out as one message; the default of 208 KiB holds about
/// 2,000 elements.
const SEND_BUFFER: usize = 16 << 20;

/// A socket of the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct Transport {
    socket: Socket,
}

impl Transport {
    pub(crate) fn open() -> Result<Self, TransportError> {
        let failed = |step| move |source| TransportError { step, source };
        let mut socket = Socket::new(NETLINK_NETFILTER).map_err(failed("open"))?;
        socket.bind_auto().map_err(failed("bind"))?;
        socket
            .connect(&SocketAddr::new(0, 0))
            .map_err(failed("connect"))?;
        socket.set_non_blocking(true).map_err(failed("set up"))?;
        // Old kernels know neither option; answers are then longer or carry no text.
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_ext_ack(true);
        // Without the capability the batch is refused anyway, with a clearer error.
        let _ = setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER);
        Ok(Self { socket })
    }

    /// Sends one datagram and gives all answers that it caused.
    pub(crate) fn ask(&self, request: &[u8]) -> Result<Vec<Answer>, TransportError> {
        let failed = |step| move |source| TransportError { step, source };
        self.socket.send(request, 0).map_err(failed("write to"))?;
        let mut answers = Vec::new();
        loop {
            match self.socket.recv_from_full() {
                Ok((datagram, _)) => parse(&datagram, &mut answers),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(answers),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read from")(error)),
            }
        }
    }
}

fn parse(mut datagram: &[u8], answers: &mut Vec<Answer>) {
    while datagram.len() >= NETLINK_HEADER {
        let length = usize::try_from(word(datagram, 0)).unwrap_or(usize::MAX);
        if length < NETLINK_HEADER || length > datagram.len() {
            return;
        }
        answers.push(message(&datagram[..length]));
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
}

fn message(bytes: &[u8]) -> Answer {
    let kind = half(bytes, 4);
    let flags = half(bytes, 6);
    let sequence = word(bytes, 8);
    let body = &bytes[NETLINK_HEADER..];
    if flags & FLAG_INTERRUPTED != 0 {
        return Answer::Interrupted;
    }
    match kind {
        NLMSG_ERROR if body.len() >= 4 => Answer::Status {
            sequence,
            errno: -i32::from_ne_bytes([body[0], body[1], body[2], body[3]]),
            detail: if flags & FLAG_ANSWER_ATTRIBUTES == 0 {
                None
            } else {
                detail(body)
            },
        },
        NLMSG_DONE => Answer::Done,
        _ => Answer::Object {
            body: body.get(NETFILTER_HEADER..).unwrap_or(&[]).to_vec(),
        },
    }
}

/// The kernel's words about an error: they stand behind the code and the header of
/// the request.
fn detail(body: &[u8]) -> Option<String> {
    let attributes = body.get(4 + NETLINK_HEADER..)?;
    let text = attribute(attributes, ATTRIBUTE_MESSAGE)?;
    let text = text.strip_suffix(&[0]).unwrap_or(&text);
    Some(String::from_utf8_lossy(text).into_owned())
}

/// The attributes of a message, as far as they are well formed.
pub(crate) fn attributes(body: &[u8]) -> Vec<(u16, Vec<u8>)> {
    NlasIterator::new(body)
        .map_while(Result::ok)
        .map(|nla| (nla.kind(), nla.value().to_vec()))
        .collect()
}

/// The value of one attribute.
pub(crate) fn attribute(body: &[u8], kind: u16) -> Option<Vec<u8>> {
    attributes(body)
        .into_iter()
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(value)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_datagrams_end_quietly() {
        let mut answers = Vec::new();
        for datagram in [&[][..], &[1; 15], &[0; 16], &[255; 40]] {
            parse(datagram, &mut answers);
        }
        assert!(answers.is_empty(), "{answers:?}");
    }

    #[test]
    fn an_error_carries_number_errno_and_text() {
        let mut bytes = Vec::new();
        bytes.extend(48_u32.to_ne_bytes());
        bytes.extend(NLMSG_ERROR.to_ne_bytes());
        bytes.extend(FLAG_ANSWER_ATTRIBUTES.to_ne_bytes());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend((-2_i32).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend(7_u16.to_ne_bytes());
        bytes.extend(ATTRIBUTE_MESSAGE.to_ne_bytes());
        bytes.extend(b"no\0\0");
        bytes.extend([0; 4]);
        let mut answers = Vec::new();
        parse(&bytes, &mut answers);
        let [
            Answer::Status {
                sequence: 7,
                errno: 2,
                detail: Some(text),
            },
        ] = &answers[..]
        else {
            panic!("{answers:?}");
        };
        assert_eq!(text, "no");
    }
}
