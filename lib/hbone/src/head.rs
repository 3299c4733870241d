//! The head of a CONNECT request: written by the source, read by the
//! destination.

use crate::authority::{self, Authority, ParseAuthorityError};
use crate::headers;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};

/// What a source puts on a CONNECT request. The values are made once where
/// they do not change, so that a request costs clones of shared bytes.
#[derive(Debug, Clone)]
pub struct ConnectHead {
    /// Destination.
    pub authority: Authority,
    /// Source workload.
    pub baggage: Option<HeaderValue>,
    /// Client address and service.
    pub forwarded: Option<HeaderValue>,
    /// Trace context.
    pub traceparent: Option<HeaderValue>,
    /// How long the application's socket may be silent before it is probed.
    pub keepalive: Option<std::time::Duration>,
}

/// Why the head of a request cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Only CONNECT opens a stream.
    #[error("method is not CONNECT")]
    NotConnect,
    /// Extended CONNECT, or a scheme or path: not a plain tunnel.
    #[error("CONNECT request has a scheme, a path or a protocol")]
    NotPlain,
    /// There is no authority at all.
    #[error("CONNECT request has no authority")]
    NoAuthority,
    /// The authority cannot be read.
    #[error("authority of the CONNECT request is not valid")]
    Authority(#[source] ParseAuthorityError),
    /// The bytes are not a head at all (textual form only).
    #[error("bytes are not the head of a request")]
    Malformed,
}

impl ConnectHead {
    /// The request to send.
    ///
    /// # Errors
    ///
    /// A host name that cannot stand in a URI is `NoAuthority`.
    pub fn encode(&self) -> Result<Request<()>, HeadError> {
        let uri = Uri::try_from(self.authority.to_string()).map_err(|_| HeadError::NoAuthority)?;
        let mut request = Request::new(());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = uri;
        let map = request.headers_mut();
        if let Some(baggage) = &self.baggage {
            map.insert(headers::BAGGAGE, baggage.clone());
        }
        insert_unindexed(map, headers::FORWARDED, self.forwarded.as_ref());
        insert_unindexed(map, headers::TRACEPARENT, self.traceparent.as_ref());
        if let Some(idle) = self.keepalive {
            map.insert(headers::KEEPALIVE, headers::encode_keepalive(idle));
        }
        Ok(request)
    }
}

/// A value that differs on every request would push what repeats (baggage) out
/// of the peer's header table; a "sensitive" value stays out of the table.
fn insert_unindexed(map: &mut HeaderMap, name: HeaderName, value: Option<&HeaderValue>) {
    if let Some(value) = value {
        let mut value = value.clone();
        value.set_sensitive(true);
        map.insert(name, value);
    }
}

/// Checks a request's method and URI and reads its authority.
///
/// # Errors
///
/// See [`HeadError`]; every one of them is answered with 400.
pub fn decode<B>(request: &Request<B>) -> Result<Authority, HeadError> {
    if request.method() != Method::CONNECT {
        return Err(HeadError::NotConnect);
    }
    if request.extensions().get::<h2::ext::Protocol>().is_some() || request.uri().scheme().is_some()
    {
        return Err(HeadError::NotPlain);
    }
    let authority = request.uri().authority().ok_or(HeadError::NoAuthority)?;
    authority::parse(authority.as_str()).map_err(HeadError::Authority)
}

/// Reads a head from text: `CONNECT authority`, then one `name: value` a line.
/// This is the same reading as [`decode`] gives a request, for tools and fuzzing.
///
/// # Errors
///
/// As [`decode`], and `Malformed` when there is no request line.
pub fn parse(bytes: &[u8]) -> Result<(Authority, HeaderMap), HeadError> {
    let mut lines = bytes.split(|&b| b == b'\n');
    let first = lines.next().unwrap_or_default();
    let first = std::str::from_utf8(first).map_err(|_| HeadError::Malformed)?;
    let (method, target) = first
        .trim_end()
        .split_once(' ')
        .ok_or(HeadError::Malformed)?;
    let mut request = Request::new(());
    *request.method_mut() =
        Method::from_bytes(method.as_bytes()).map_err(|_| HeadError::Malformed)?;
    *request.uri_mut() = Uri::try_from(target).map_err(|_| HeadError::Malformed)?;
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|&b| b == b':') else {
            continue;
        };
        let (name, value) = line.split_at(colon);
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name),
            HeaderValue::from_bytes(value[1..].trim_ascii()),
        ) {
            request.headers_mut().append(name, value);
        }
    }
    let authority = decode(&request)?;
    headers::Baggage::decode(request.headers());
    headers::Forwarded::decode(request.headers());
    headers::TraceParent::decode(request.headers());
    headers::decode_keepalive(request.headers());
    Ok((authority, std::mem::take(request.headers_mut())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_other_methods_and_forms() {
        for (text, fault) in [
            ("", HeadError::Malformed),
            ("CONNECT", HeadError::Malformed),
            ("GET 10.0.0.1:80", HeadError::NotConnect),
            ("CONNECT http://10.0.0.1:80/", HeadError::NotPlain),
            ("CONNECT /path", HeadError::NoAuthority),
            (
                "CONNECT host",
                HeadError::Authority(ParseAuthorityError::MissingPort),
            ),
            (
                "CONNECT 10.0.0.1:0",
                HeadError::Authority(ParseAuthorityError::BadPort),
            ),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err(), fault, "{text}");
        }
    }

    #[test]
    fn what_is_encoded_is_read_back() {
        let head = ConnectHead {
            authority: "[fd00::1]:80".parse().unwrap(),
            baggage: Some(HeaderValue::from_static("k8s.namespace.name=a")),
            forwarded: Some(HeaderValue::from_static("for=\"10.0.0.1:1\"")),
            traceparent: None,
            keepalive: None,
        };
        let request = head.encode().unwrap();
        assert_eq!(decode(&request).unwrap(), head.authority);
        assert_eq!(request.uri().path_and_query(), None);
        assert_eq!(request.headers().len(), 2);
        assert!(!request.headers()[headers::BAGGAGE].is_sensitive());
        assert!(request.headers()[headers::FORWARDED].is_sensitive());
    }
}
