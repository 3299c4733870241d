//! Messages of every protocol that crosses a process boundary, and the types of
//! Culvert's own Kubernetes kinds. Messages only: no logic lives here.

pub mod policy;

/// Generated protobuf messages, one module for each protobuf package.
pub mod proto {
    #![expect(missing_docs, reason = "generated from the commented .proto files")]
    #![allow(
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        reason = "generated code"
    )]

    /// Delta xDS transport.
    pub mod discovery {
        tonic::include_proto!("envoy.service.discovery.v3");
    }
    /// Certificate service.
    pub mod ca {
        tonic::include_proto!("istio.v1.auth");
    }
    /// CNI agent to node proxy.
    pub mod zds {
        tonic::include_proto!("istio.workload.zds");
    }
    /// Listening sockets kept by the CNI agent.
    pub mod keeper {
        tonic::include_proto!("culvert.keeper");
    }
    /// Packages that refer to each other by their protobuf names.
    pub mod istio {
        /// Workloads and services.
        pub mod workload {
            tonic::include_proto!("istio.workload");
        }
        /// L4 authorization.
        pub mod security {
            tonic::include_proto!("istio.security");
        }
    }
    /// Culvert's additions to the workload API.
    pub mod culvert {
        tonic::include_proto!("culvert.workload");
    }
    pub use istio::{security, workload};
}

/// `Any.type_url` strings and names of extensions.
pub mod names {
    /// Workloads and services.
    pub const ADDRESS_TYPE: &str = "type.googleapis.com/istio.workload.Address";
    /// L4 policies judged at the destination.
    pub const AUTHORIZATION_TYPE: &str = "type.googleapis.com/istio.security.Authorization";
    /// L4 policies judged at the source; the body is an `istio.security.Authorization`.
    pub const EGRESS_AUTHORIZATION_TYPE: &str =
        "type.googleapis.com/culvert.workload.EgressAuthorization";
    /// [`PeerSets`](crate::proto::culvert::PeerSets) of a workload.
    pub const PEER_SETS: &str = "culvert.dev/peer-sets";
    /// [`EgressPolicies`](crate::proto::culvert::EgressPolicies) of a workload.
    pub const EGRESS_POLICIES: &str = "culvert.dev/egress-policies";
    /// [`PeerMatch`](crate::proto::culvert::PeerMatch) of a match.
    pub const PEER_MATCH: &str = "culvert.dev/peer-match";
    /// [`Origin`](crate::proto::culvert::Origin) of a policy.
    pub const ORIGIN: &str = "culvert.dev/origin";
}
