//! ZDS packets: one protobuf message each, with at most one descriptor.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use culvert_api::proto::zds;
use culvert_netns::Netns;
use prost::Message;

/// Both sides read with a buffer of this size; the agent keeps below it.
pub const PACKET_BYTES_MAX: usize = 1024;

/// Kubernetes names are at most 253 bytes; UIDs are 36.
const NAME_BYTES_MAX: usize = 253;

/// What the agent asks for. `N` is the namespace's handle, a parameter so that the
/// session can be tested without namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<N> {
    /// Serve this pod.
    Add(Addition<N>),
    /// A pod that is still there, but whose namespace the agent has not at hand.
    Keep(Arc<str>),
    /// The pod is gone.
    Delete(Arc<str>),
    /// Every pod has been named since the connection began.
    SnapshotSent,
}

/// A pod to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition<N> {
    /// Kubernetes UID.
    pub uid: Arc<str>,
    /// Who it is.
    pub info: Info,
    /// Where it is.
    pub netns: N,
}

/// What the agent says of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The pod's name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its service account.
    pub service_account: Arc<str>,
}

/// Why a packet was refused.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// Not a message of the protocol: nothing on this connection can be trusted.
    #[error("packet of {bytes} bytes is not a workload request")]
    Undecodable {
        /// Its length.
        bytes: usize,
        /// What the decoder said; none when the message is of an unknown kind.
        #[source]
        source: Option<prost::DecodeError>,
    },
    /// A pod without a name, namespace or service account.
    #[error("pod {uid:?} has no usable {field}")]
    Incomplete {
        /// Its UID.
        uid: String,
        /// What is missing.
        field: &'static str,
    },
    /// Descriptors where there should be none, or not one where there should be.
    #[error("packet carries {count} descriptors, expected {expected}")]
    Descriptors {
        /// How many came.
        count: usize,
        /// How many the message needs.
        expected: usize,
    },
    /// The descriptor is something else.
    #[error("descriptor of pod {uid:?} is unusable")]
    NotNetns {
        /// The pod.
        uid: String,
        /// The cause.
        #[source]
        source: culvert_netns::NetnsError,
    },
}

impl PacketError {
    /// Whether the two sides no longer understand each other, so that only a new
    /// connection helps. Otherwise one pod is refused and the rest goes on.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Undecodable { .. } | Self::Incomplete { .. })
    }
}

/// Reads the bytes of a packet; the namespace is still to come.
///
/// # Errors
/// When they are not a request, or a pod is not fully named.
pub fn decode(bytes: &[u8]) -> Result<Request<()>, PacketError> {
    use zds::workload_request::Payload;
    let undecodable = |source| PacketError::Undecodable {
        bytes: bytes.len(),
        source,
    };
    let message = zds::WorkloadRequest::decode(bytes).map_err(|e| undecodable(Some(e)))?;
    match message.payload {
        Some(Payload::Add(add)) => {
            let info = add.workload_info.ok_or_else(|| PacketError::Incomplete {
                uid: add.uid.clone(),
                field: "workload_info",
            })?;
            let named = |text: &str, field| name(&add.uid, text, field);
            let info = Info {
                name: named(&info.name, "name")?,
                namespace: named(&info.namespace, "namespace")?,
                service_account: named(&info.service_account, "service_account")?,
            };
            Ok(Request::Add(Addition {
                uid: name("", &add.uid, "uid")?,
                info,
                netns: (),
            }))
        }
        Some(Payload::Keep(keep)) => Ok(Request::Keep(name("", &keep.uid, "uid")?)),
        Some(Payload::Del(del)) => Ok(Request::Delete(name("", &del.uid, "uid")?)),
        Some(Payload::SnapshotSent(_)) => Ok(Request::SnapshotSent),
        None => Err(undecodable(None)),
    }
}

fn name(uid: &str, text: &str, field: &'static str) -> Result<Arc<str>, PacketError> {
    let usable = !text.is_empty()
        && text.len() <= NAME_BYTES_MAX
        && !text.contains(|c: char| c == '/' || c.is_control());
    if usable {
        Ok(Arc::from(text))
    } else {
        Err(PacketError::Incomplete {
            uid: uid.to_owned(),
            field,
        })
    }
}

/// Joins a request with the descriptors of its packet, which are closed on error.
///
/// # Errors
/// When there are too many or too few, or when it is not a network namespace.
pub fn attach(request: Request<()>, fds: Vec<OwnedFd>) -> Result<Request<Netns>, PacketError> {
    let count = fds.len();
    let mut fds = fds.into_iter();
    let expected = usize::from(matches!(request, Request::Add(_)));
    if count != expected {
        return Err(PacketError::Descriptors { count, expected });
    }
    match (request, fds.next()) {
        (Request::Add(Addition { uid, info, .. }), Some(fd)) => {
            let netns = Netns::from_fd(fd).map_err(|source| PacketError::NotNetns {
                uid: uid.to_string(),
                source,
            })?;
            Ok(Request::Add(Addition { uid, info, netns }))
        }
        (Request::Add(_), None) => Err(PacketError::Descriptors { count, expected }),
        (Request::Keep(uid), _) => Ok(Request::Keep(uid)),
        (Request::Delete(uid), _) => Ok(Request::Delete(uid)),
        (Request::SnapshotSent, _) => Ok(Request::SnapshotSent),
    }
}

/// The first packet of a connection, from us.
#[must_use]
pub fn hello() -> Vec<u8> {
    zds::ZdsHello {
        version: zds::Version::V1.into(),
    }
    .encode_to_vec()
}

/// The answer to one request; an empty error is success.
#[must_use]
pub fn acknowledgement(error: &str) -> Vec<u8> {
    use zds::workload_response::Payload;
    // The peer's buffer ends at PACKET_BYTES_MAX; the framing takes a few bytes.
    let mut end = error.len().min(PACKET_BYTES_MAX - 16);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    let ack = zds::Ack {
        error: error[..end].to_owned(),
    };
    zds::WorkloadResponse {
        payload: Some(Payload::Ack(ack)),
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use zds::workload_request::Payload;

    use super::*;

    fn encode(payload: Payload) -> Vec<u8> {
        zds::WorkloadRequest {
            payload: Some(payload),
        }
        .encode_to_vec()
    }

    fn add(uid: &str, name: &str) -> Vec<u8> {
        let info = zds::WorkloadInfo {
            name: name.to_owned(),
            namespace: "shop".to_owned(),
            service_account: "cart".to_owned(),
        };
        encode(Payload::Add(zds::AddWorkload {
            uid: uid.to_owned(),
            workload_info: Some(info),
        }))
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for bytes in [
            &b""[..],
            b"\x00",
            b"\xff\xff\xff",
            b"\x32\x00",
            b"hello world",
        ] {
            let error = decode(bytes).expect_err("no request");
            assert!(error.is_fatal(), "{error}");
        }
        for bytes in [
            add("", "a"),
            add("u", ""),
            add("u", "a/b"),
            add("u", &"x".repeat(254)),
        ] {
            assert!(matches!(
                decode(&bytes),
                Err(PacketError::Incomplete { .. })
            ));
        }
        let bare = encode(Payload::Add(zds::AddWorkload {
            uid: "u".into(),
            workload_info: None,
        }));
        assert!(decode(&bare).expect_err("no info").is_fatal());
    }

    #[test]
    fn field_numbers_are_those_of_the_protocol() {
        // delete: payload 2 { uid 2 }, keep: payload 5 { uid 1 }, snapshot: payload 3 {}.
        assert_eq!(
            decode(b"\x12\x03\x12\x01u").expect("del"),
            Request::Delete("u".into())
        );
        assert_eq!(
            decode(b"\x2a\x03\x0a\x01u").expect("keep"),
            Request::Keep("u".into())
        );
        assert_eq!(decode(b"\x1a\x00").expect("sent"), Request::SnapshotSent);
        assert_eq!(hello(), b"\x08\x01");
        assert_eq!(acknowledgement(""), b"\x0a\x00");
        assert_eq!(acknowledgement("no"), b"\x0a\x04\x0a\x02no");
        assert!(acknowledgement(&"ä".repeat(2000)).len() <= PACKET_BYTES_MAX);
    }

    #[test]
    fn descriptors_must_be_one_with_an_add_and_none_else() {
        let file = || OwnedFd::from(tempfile::tempfile().expect("file"));
        let request = || decode(&add("u", "a")).expect("add");
        let error = attach(request(), Vec::new()).expect_err("none");
        assert!(matches!(
            error,
            PacketError::Descriptors {
                count: 0,
                expected: 1
            }
        ));
        assert!(!error.is_fatal());
        assert!(attach(request(), vec![file(), file()]).is_err());
        assert!(matches!(
            attach(request(), vec![file()]),
            Err(PacketError::NotNetns { .. })
        ));
        assert!(attach(Request::SnapshotSent, vec![file()]).is_err());
        assert!(attach(Request::Keep("u".into()), Vec::new()).is_ok());
        let own = std::fs::File::open("/proc/self/ns/net").expect("own namespace");
        assert!(attach(request(), vec![own.into()]).is_ok());
    }
}
