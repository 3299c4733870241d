//! The headers that travel with a CONNECT request. All of them are telemetry, or
//! a hint for a socket: nothing here may feed an authorization decision.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

/// Reason header of a refusal: category and id only, never a policy's name.
pub const REASON: HeaderName = HeaderName::from_static("x-culvert-reason");
/// Describes the source workload (request) or the destination (response).
pub const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
/// Client address and service host name.
pub const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
/// W3C trace context.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// After how much silence the application's socket is probed: whole seconds.
pub const KEEPALIVE: HeaderName = HeaderName::from_static("x-culvert-keepalive");
/// Network of the sender, only inside a tunnel through a gateway.
pub const FORWARDED_NETWORK: HeaderName = HeaderName::from_static("x-forwarded-network");

/// What `baggage` says about one workload. Empty texts are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Baggage {
    /// Cluster id.
    pub cluster: Option<String>,
    /// Namespace of the workload.
    pub namespace: Option<String>,
    /// Kind and name of the controller or pod.
    pub workload: Option<(WorkloadKind, String)>,
    /// Canonical service name.
    pub service: Option<String>,
    /// Canonical revision.
    pub revision: Option<String>,
    /// Region of the locality.
    pub region: Option<String>,
    /// Zone of the locality.
    pub zone: Option<String>,
}

/// Kind of a workload, as far as `baggage` tells kinds apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    /// `k8s.deployment.name`
    Deployment,
    /// `k8s.cronjob.name`
    CronJob,
    /// `k8s.pod.name`
    Pod,
    /// `k8s.job.name`
    Job,
}

impl WorkloadKind {
    fn key(self) -> &'static str {
        match self {
            Self::Deployment => "k8s.deployment.name",
            Self::CronJob => "k8s.cronjob.name",
            Self::Pod => "k8s.pod.name",
            Self::Job => "k8s.job.name",
        }
    }

    fn from_key(key: &str) -> Option<Self> {
        [Self::Deployment, Self::CronJob, Self::Pod, Self::Job]
            .into_iter()
            .find(|kind| kind.key() == key)
    }
}

impl Baggage {
    /// The header value, in the order that peers expect. `None` when there is
    /// nothing to say or a field cannot stand in a header.
    pub fn encode(&self) -> Option<HeaderValue> {
        let workload = self.workload.as_ref();
        let fields = [
            ("k8s.cluster.name", self.cluster.as_deref()),
            ("k8s.namespace.name", self.namespace.as_deref()),
            (
                workload.map_or("", |(kind, _)| kind.key()),
                workload.map(|(_, name)| name.as_str()),
            ),
            ("service.name", self.service.as_deref()),
            ("service.version", self.revision.as_deref()),
            ("cloud.region", self.region.as_deref()),
            ("cloud.availability_zone", self.zone.as_deref()),
        ];
        let mut text = String::with_capacity(160);
        for (key, value) in fields {
            let Some(value) = value.filter(|value| is_plain(value)) else {
                continue;
            };
            if !text.is_empty() {
                text.push(',');
            }
            let _ = write!(text, "{key}={value}");
        }
        if text.is_empty() {
            None
        } else {
            HeaderValue::try_from(text).ok()
        }
    }

    /// Reads every `baggage` header of a request. Unknown keys are skipped.
    pub fn decode(headers: &HeaderMap) -> Self {
        let mut baggage = Self::default();
        let values = headers.get_all(BAGGAGE);
        for item in values
            .iter()
            .filter_map(|v| v.to_str().ok())
            .flat_map(|v| v.split(','))
        {
            // Properties after ';' carry nothing that we read.
            let item = item.split(';').next().unwrap_or_default();
            let Some((key, value)) = item.split_once('=') else {
                continue;
            };
            baggage.set(key.trim(), value.trim());
        }
        baggage
    }

    fn set(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let value = value.to_owned();
        match key {
            "k8s.cluster.name" => self.cluster = Some(value),
            "k8s.namespace.name" => self.namespace = Some(value),
            "service.name" => self.service = Some(value),
            "service.version" => self.revision = Some(value),
            "cloud.region" => self.region = Some(value),
            "cloud.availability_zone" => self.zone = Some(value),
            _ => {
                if let Some(kind) = WorkloadKind::from_key(key) {
                    self.workload = Some((kind, value));
                }
            }
        }
    }
}

fn is_plain(value: &str) -> bool {
    !value.is_empty()
        && value
            .bytes()
            .all(|b| (0x21..0x7f).contains(&b) && b != b',' && b != b';')
}

/// The `forwarded` header: who the client is and which service it meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Address of the client, for logs alone.
    pub client: Option<SocketAddr>,
    /// Host name of the service.
    pub host: Option<String>,
}

impl Forwarded {
    /// The header value, `None` when it would be empty.
    pub fn encode(&self) -> Option<HeaderValue> {
        let mut text = String::with_capacity(96);
        if let Some(client) = self.client {
            let _ = write!(text, "for=\"{client}\"");
        }
        if let Some(host) = self.host.as_deref().filter(|host| is_plain(host)) {
            if !text.is_empty() {
                text.push(';');
            }
            let _ = write!(text, "host={host}");
        }
        if text.is_empty() {
            None
        } else {
            HeaderValue::try_from(text).ok()
        }
    }

    /// Reads the first `forwarded` header; what cannot be read is left out.
    pub fn decode(headers: &HeaderMap) -> Self {
        let mut forwarded = Self::default();
        let Some(text) = headers.get(FORWARDED).and_then(|v| v.to_str().ok()) else {
            return forwarded;
        };
        let first = text.split(',').next().unwrap_or_default();
        for part in first.split(';') {
            let Some((key, value)) = part.split_once('=') else {
                continue;
            };
            let value = value.trim().trim_matches('"');
            if key.trim().eq_ignore_ascii_case("for") {
                forwarded.client = value.parse().ok();
            } else if key.trim().eq_ignore_ascii_case("host") && !value.is_empty() {
                forwarded.host = Some(value.to_owned());
            }
        }
        forwarded
    }
}

/// A W3C `traceparent` of version 00.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id, not zero.
    pub trace: u128,
    /// Span id, not zero.
    pub span: u64,
    /// Flags byte.
    pub flags: u8,
}

impl TraceParent {
    /// Bytes of the encoded form.
    const LENGTH: usize = 55;

    /// The header value.
    pub fn encode(&self) -> HeaderValue {
        let text = format!(
            "00-{:032x}-{:016x}-{:02x}",
            self.trace, self.span, self.flags
        );
        HeaderValue::try_from(text).expect("invariant: hexadecimal digits and dashes")
    }

    /// Reads the header; anything but version 00 with ids of the right length
    /// and not zero is as if there were none.
    pub fn decode(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(TRACEPARENT)?.to_str().ok()?;
        if text.len() != Self::LENGTH {
            return None;
        }
        let mut parts = text.split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || version != "00" || trace.len() != 32 || span.len() != 16 {
            return None;
        }
        let hex = |text: &str| {
            text.bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        if ![trace, span, flags].into_iter().all(hex) {
            return None;
        }
        let parent = Self {
            trace: u128::from_str_radix(trace, 16).ok()?,
            span: u64::from_str_radix(span, 16).ok()?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        };
        (parent.trace != 0 && parent.span != 0).then_some(parent)
    }
}

/// What the kernel takes for an idle time, in seconds.
const IDLE_MAX: u64 = 32_767;

/// The value of [`KEEPALIVE`], rounded up to a whole second.
pub fn encode_keepalive(idle: Duration) -> HeaderValue {
    let seconds = idle.as_secs() + u64::from(idle.subsec_nanos() > 0);
    HeaderValue::from(seconds.clamp(1, IDLE_MAX))
}

/// Reads [`KEEPALIVE`]; what the kernel would not take is as if there were none.
pub fn decode_keepalive(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(KEEPALIVE)?.to_str().ok()?;
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = text.parse().ok()?;
    (1..=IDLE_MAX)
        .contains(&seconds)
        .then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(name: HeaderName, value: HeaderValue) -> HeaderMap {
        HeaderMap::from_iter([(name, value)])
    }

    #[test]
    fn bad_trace_parents_are_none() {
        for text in [
            "",
            "00-0000000000000000000000000000000a-000000000000000b-0",
            "01-0000000000000000000000000000000a-000000000000000b-00",
            "00-00000000000000000000000000000000-000000000000000b-00",
            "00-0000000000000000000000000000000a-0000000000000000-00",
            "00-0000000000000000000000000000000A-000000000000000b-00",
            "00-+000000000000000000000000000000a-000000000000000b-00",
            "00-000000000000000b-0000000000000000000000000000000a-00",
        ] {
            let headers = map(TRACEPARENT, HeaderValue::from_str(text).unwrap());
            assert_eq!(TraceParent::decode(&headers), None, "{text}");
        }
    }

    #[test]
    fn keepalive_is_whole_seconds_that_a_socket_takes() {
        let read =
            |text: &str| decode_keepalive(&map(KEEPALIVE, HeaderValue::from_str(text).unwrap()));
        for text in [
            "",
            "0",
            "-1",
            "+5",
            " 5",
            "5.5",
            "32768",
            "99999999999999999999",
            "x",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(decode_keepalive(&HeaderMap::new()), None);
        assert_eq!(read("32767"), Some(Duration::from_secs(32_767)));
        for (millis, text) in [
            (0, "1"),
            (1, "1"),
            (9_990, "10"),
            (10_000, "10"),
            (99_999_999, "32767"),
        ] {
            let value = encode_keepalive(Duration::from_millis(millis));
            assert_eq!(value, text);
            assert!(decode_keepalive(&map(KEEPALIVE, value)).is_some());
        }
    }

    #[test]
    fn baggage_is_in_the_order_that_peers_expect() {
        let baggage = Baggage {
            cluster: Some("c".into()),
            namespace: Some("n".into()),
            workload: Some((WorkloadKind::Deployment, "d".into())),
            service: Some("s".into()),
            revision: Some("v1".into()),
            region: Some("r".into()),
            zone: Some(String::new()),
        };
        assert_eq!(
            baggage.encode().unwrap(),
            "k8s.cluster.name=c,k8s.namespace.name=n,k8s.deployment.name=d,service.name=s,\
             service.version=v1,cloud.region=r"
        );
        assert_eq!(Baggage::default().encode(), None);
    }

    #[test]
    fn forwarded_takes_quotes_or_none() {
        let read =
            |text: &'static str| Forwarded::decode(&map(FORWARDED, HeaderValue::from_static(text)));
        assert_eq!(
            read("for=\"10.0.0.1:80\";host=\"a.b\"").host.as_deref(),
            Some("a.b")
        );
        let other = read("Host=a.b ; For=\"[fd00::1]:5\", for=1.1.1.1");
        assert_eq!(other.host.as_deref(), Some("a.b"));
        assert_eq!(other.client, Some("[fd00::1]:5".parse().unwrap()));
        assert_eq!(read("nonsense"), Forwarded::default());
    }

    proptest! {
        #[test]
        fn trace_parents_round_trip(trace in 1u128.., span in 1u64.., flags: u8) {
            let parent = TraceParent { trace, span, flags };
            prop_assert_eq!(TraceParent::decode(&map(TRACEPARENT, parent.encode())), Some(parent));
        }

        #[test]
        fn baggage_round_trips(
            namespace in "[a-z0-9-]{1,20}", name in "[a-z0-9.-]{1,20}", revision in "[a-z0-9]{1,4}"
        ) {
            let baggage = Baggage {
                namespace: Some(namespace),
                workload: Some((WorkloadKind::Job, name)),
                revision: Some(revision),
                ..Baggage::default()
            };
            let headers = map(BAGGAGE, baggage.encode().unwrap());
            prop_assert_eq!(Baggage::decode(&headers), baggage);
        }
    }
}
