//! One record of the access log.

use std::fmt::{self, Display, Formatter, LowerHex};
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use culvert_identity::Identity;
use culvert_model::{Service, Workload};

use super::Format;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A connection opened.
    Opened,
    /// It still lasts.
    Lasting,
    /// It closed.
    Closed,
    /// It never opened.
    Failed,
}

impl Event {
    fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "connection opened",
            Self::Lasting => "connection open",
            Self::Closed => "connection complete",
            Self::Failed => "connection failed",
        }
    }
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) at: SystemTime,
    pub(crate) direction: &'static str,
    pub(crate) security: &'static str,
    pub(crate) source: SocketAddr,
    pub(crate) source_workload: Option<&'a Workload>,
    /// Proven by the handshake.
    pub(crate) source_identity: Option<&'a Identity>,
    pub(crate) destination: SocketAddr,
    pub(crate) authority: Option<SocketAddr>,
    pub(crate) service: Option<&'a Service>,
    pub(crate) destination_workload: Option<&'a Workload>,
    pub(crate) destination_identity: Option<&'a Identity>,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) duration: Duration,
    pub(crate) trace: Option<u128>,
    pub(crate) flag: &'static str,
    /// Joins the record of a refusal with what the client was told.
    pub(crate) refusal: Option<u64>,
    pub(crate) error: Option<&'a str>,
}

pub(crate) fn write_line(out: &mut Vec<u8>, format: Format, event: Event, fields: &Fields<'_>) {
    let mut line = Line {
        out,
        json: format == Format::Json,
    };
    line.start(fields.at, event);
    line.side(
        "src",
        Some(fields.source),
        fields.source_workload,
        fields.source_identity,
    );
    line.shown("dst.addr", Some(fields.destination));
    line.shown("dst.hbone_addr", fields.authority);
    line.text(
        "dst.service",
        fields.service.map(|service| &*service.name.hostname),
    );
    line.side(
        "dst",
        None,
        fields.destination_workload,
        fields.destination_identity,
    );
    line.text("direction", Some(fields.direction));
    line.text("connection_security_policy", Some(fields.security));
    line.number("bytes_sent", fields.bytes_sent);
    line.number("bytes_recv", fields.bytes_received);
    let millis = fields.duration.as_millis();
    line.shown("duration", Some(format_args!("{millis}ms")));
    line.shown("trace", fields.trace.map(Hexadecimal));
    line.text("response_flags", Some(fields.flag));
    line.shown("refusal", fields.refusal.map(Hexadecimal));
    line.text("error", fields.error);
    line.end();
}

struct Line<'a> {
    out: &'a mut Vec<u8>,
    json: bool,
}

// Writing into a vector does not fail.
impl Line<'_> {
    fn start(&mut self, at: SystemTime, event: Event) {
        let time = humantime::format_rfc3339_millis(at);
        let event = event.as_str();
        if self.json {
            let _ = write!(
                self.out,
                "{{\"time\":\"{time}\",\"scope\":\"access\",\"message\":\"{event}\""
            );
        } else {
            let _ = write!(self.out, "{time} access {event}");
        }
    }

    fn side(
        &mut self,
        prefix: &'static str,
        address: Option<SocketAddr>,
        workload: Option<&Workload>,
        identity: Option<&Identity>,
    ) {
        let names: [&str; 5] = if prefix == "src" {
            [
                "src.addr",
                "src.workload",
                "src.namespace",
                "src.identity",
                "src.cluster",
            ]
        } else {
            [
                "",
                "dst.workload",
                "dst.namespace",
                "dst.identity",
                "dst.cluster",
            ]
        };
        self.shown(names[0], address);
        self.text(names[1], workload.map(|workload| &*workload.name));
        self.text(names[2], workload.map(|workload| &*workload.namespace));
        self.text(names[3], identity.map(Identity::uri));
        self.text(names[4], workload.map(|workload| &*workload.cluster_id));
    }

    /// A value of any bytes.
    fn text(&mut self, key: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.key(key);
        let plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'=' && b != b'\\';
        let is_plain = value.bytes().all(plain);
        let quoted = self.json || !is_plain;
        self.quote(quoted);
        if is_plain {
            self.out.extend_from_slice(value.as_bytes());
        } else {
            let _ = Escaped(self.out).write_all(value.as_bytes());
        }
        self.quote(quoted);
    }

    /// A value whose text needs no escapes.
    fn shown(&mut self, key: &str, value: Option<impl Display>) {
        let Some(value) = value else { return };
        self.key(key);
        self.quote(self.json);
        let _ = write!(self.out, "{value}");
        self.quote(self.json);
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = write!(self.out, "{value}");
    }

    fn key(&mut self, key: &str) {
        let parts: [&str; 3] = if self.json {
            [",\"", key, "\":"]
        } else {
            [" ", key, "="]
        };
        for part in parts {
            self.out.extend_from_slice(part.as_bytes());
        }
    }

    fn quote(&mut self, quoted: bool) {
        if quoted {
            self.out.push(b'"');
        }
    }

    fn end(&mut self) {
        self.out
            .extend_from_slice(if self.json { b"}\n" } else { b"\n" });
    }
}

/// All digits of a number, leading zeros too.
struct Hexadecimal<T>(T);

impl<T: LowerHex> Display for Hexadecimal<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$x}", self.0, width = 2 * size_of::<T>())
    }
}

/// Escapes for a JSON string; the same escapes keep a text record on one line.
struct Escaped<'a>(&'a mut Vec<u8>);

impl std::io::Write for Escaped<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for &byte in bytes {
            match byte {
                b'"' | b'\\' => self.0.extend_from_slice(&[b'\\', byte]),
                b'\n' => self.0.extend_from_slice(b"\\n"),
                0..=0x1f | 0x7f => write!(self.0, "\\u{byte:04x}")?,
                _ => self.0.push(byte),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
impl Fields<'_> {
    pub(crate) fn sample() -> Self {
        Fields {
            at: SystemTime::UNIX_EPOCH,
            direction: "outbound",
            security: "mutual_tls",
            source: ([10, 0, 0, 1], 1234).into(),
            source_workload: None,
            source_identity: None,
            destination: ([10, 0, 0, 2], 15008).into(),
            authority: Some(([10, 0, 0, 2], 80).into()),
            service: None,
            destination_workload: None,
            destination_identity: None,
            bytes_sent: 1,
            bytes_received: 2,
            duration: Duration::from_millis(3),
            trace: Some(5),
            flag: "-",
            refusal: None,
            error: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: Format, error: &str) -> String {
        let fields = Fields {
            error: Some(error),
            ..Fields::sample()
        };
        let mut out = Vec::new();
        write_line(&mut out, format, Event::Closed, &fields);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn nothing_in_a_record_can_end_it_or_start_another() {
        let hostile = "a\" b=c\n\\ \u{7f} é";
        let text = line(Format::Text, hostile);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(text.contains(r#"error="a\" b=c\n\\ \u007f é""#), "{text}");
        let json = line(Format::Json, hostile);
        let parsed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(parsed["error"], hostile);
        assert_eq!(parsed["bytes_sent"], 1);
        assert_eq!(parsed["dst.hbone_addr"], "10.0.0.2:80");
    }

    #[test]
    fn a_text_record_is_what_people_expect() {
        assert_eq!(
            line(Format::Text, "reset"),
            "1970-01-01T00:00:00.000Z access connection complete src.addr=10.0.0.1:1234 \
             dst.addr=10.0.0.2:15008 dst.hbone_addr=10.0.0.2:80 direction=outbound \
             connection_security_policy=mutual_tls bytes_sent=1 bytes_recv=2 duration=3ms \
             trace=00000000000000000000000000000005 response_flags=- error=reset\n"
        );
    }
}
