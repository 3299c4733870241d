//! ZDS packets as the agent sends and reads them: one protobuf message each.

use culvert_api::proto::zds;
use prost::Message;

use crate::state::Request;

/// Both sides read with a buffer of this size.
pub const PACKET_BYTES_MAX: usize = 1024;

/// A packet of a node proxy that is none of the protocol.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// Not a message.
    #[error("packet of {bytes} bytes is no {expected}")]
    Undecodable {
        /// Its length.
        bytes: usize,
        /// What should have come.
        expected: &'static str,
        /// What the decoder says; none when the message is of another kind.
        #[source]
        source: Option<prost::DecodeError>,
    },
    /// Another version of the protocol.
    #[error("the node proxy speaks version {0} of the protocol, expected 1")]
    Version(i32),
    /// A request does not fit into a packet.
    #[error("request of {0} bytes is too long for a packet")]
    TooLong(usize),
}

/// Reads the first packet of a node proxy.
///
/// # Errors
/// When it is something else.
pub fn decode_hello(bytes: &[u8]) -> Result<(), PacketError> {
    let hello = zds::ZdsHello::decode(bytes).map_err(|source| PacketError::Undecodable {
        bytes: bytes.len(),
        expected: "hello",
        source: Some(source),
    })?;
    if hello.version == i32::from(zds::Version::V1) {
        Ok(())
    } else {
        Err(PacketError::Version(hello.version))
    }
}

/// Reads the answer to a request: an empty text is success.
///
/// # Errors
/// When it is something else.
pub fn decode_acknowledgement(bytes: &[u8]) -> Result<String, PacketError> {
    let undecodable = |source| PacketError::Undecodable {
        bytes: bytes.len(),
        expected: "acknowledgement",
        source,
    };
    let response = zds::WorkloadResponse::decode(bytes).map_err(|e| undecodable(Some(e)))?;
    match response.payload {
        Some(zds::workload_response::Payload::Ack(ack)) => Ok(ack.error),
        None => Err(undecodable(None)),
    }
}

/// The bytes of a request; the namespace of an Add goes along as a descriptor.
///
/// # Errors
/// When names are too long for a packet.
pub fn encode(request: &Request) -> Result<Vec<u8>, PacketError> {
    use zds::workload_request::Payload;
    let payload = match request {
        Request::Add {
            uid,
            name,
            namespace,
            service_account,
        } => Payload::Add(zds::AddWorkload {
            uid: uid.to_string(),
            workload_info: Some(zds::WorkloadInfo {
                name: name.clone(),
                namespace: namespace.clone(),
                service_account: service_account.clone(),
            }),
        }),
        Request::Keep(uid) => Payload::Keep(zds::KeepWorkload {
            uid: uid.to_string(),
        }),
        Request::Delete(uid) => Payload::Del(zds::DelWorkload {
            uid: uid.to_string(),
        }),
        Request::SnapshotSent => Payload::SnapshotSent(zds::SnapshotSent {}),
    };
    let bytes = zds::WorkloadRequest {
        payload: Some(payload),
    }
    .encode_to_vec();
    if bytes.len() < PACKET_BYTES_MAX {
        Ok(bytes)
    } else {
        Err(PacketError::TooLong(bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_of_version_one_only() {
        let hello = |version| zds::ZdsHello { version }.encode_to_vec();
        assert!(decode_hello(&hello(1)).is_ok());
        for bad in [hello(0), hello(2), vec![0xff], vec![8]] {
            assert!(decode_hello(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn acknowledgements() {
        let ack = |error: &str| {
            let error = error.to_owned();
            let payload = zds::workload_response::Payload::Ack(zds::Ack { error });
            zds::WorkloadResponse {
                payload: Some(payload),
            }
            .encode_to_vec()
        };
        assert_eq!(decode_acknowledgement(&ack("")).expect("good"), "");
        assert_eq!(decode_acknowledgement(&ack("no")).expect("good"), "no");
        assert!(decode_acknowledgement(&[]).is_err());
        assert!(decode_acknowledgement(&[0x0a, 0x7f]).is_err());
    }

    #[test]
    fn requests_fit_into_a_packet() {
        let add = |length: usize| Request::Add {
            uid: "u".repeat(36).into(),
            name: "n".repeat(length),
            namespace: "s".repeat(63),
            service_account: "a".repeat(length),
        };
        assert!(encode(&add(253)).is_ok(), "the longest names of Kubernetes");
        assert!(matches!(encode(&add(600)), Err(PacketError::TooLong(_))));
        let bytes = encode(&Request::Keep("u1".into())).expect("short");
        assert_eq!(bytes, [0x2a, 4, 0x0a, 2, b'u', b'1']);
        let bytes = encode(&Request::Delete("u1".into())).expect("short");
        assert_eq!(bytes, [0x12, 4, 0x12, 2, b'u', b'1'], "the UID is field 2");
    }
}
