//! TLS configurations of tunnels.
//!
//! TLS 1.3 only, AES-GCM only, X25519MLKEM768 preferred, ALPN exactly `h2`,
//! both ends authenticated, no server name sent. Nothing is ever resumed: a
//! resumed session would skip the verification of the peer's certificate, and
//! so outlive its expiry, a rotated root, or a changed list of identities.

use std::sync::{Arc, LazyLock};

use culvert_identity::Identity;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, CommonState, ServerConfig};

use crate::certificate::IssuedCertificate;
use crate::fault::Fault;
use crate::verify::{TunnelClients, TunnelServer, identity_of};

/// The only application protocol of tunnels and of the control plane.
pub const ALPN: &[u8] = b"h2";

/// What every configuration of ours negotiates from.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        Arc::new(CryptoProvider {
            cipher_suites: vec![TLS13_AES_256_GCM_SHA384, TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1],
            ..aws_lc_rs::default_provider()
        })
    });
    Arc::clone(&PROVIDER)
}

/// How the workload that owns `certificate` accepts tunnels.
///
/// A client must hold a certificate for client use that chains to the roots in
/// force and names an identity of the workload's own trust domain. Built once
/// for each certificate; later calls are a pointer copy.
#[must_use]
pub fn server_config(certificate: &IssuedCertificate) -> Arc<ServerConfig> {
    certificate.server_config(|| {
        let clients = TunnelClients::new(
            certificate.trust().clone(),
            certificate.identity().trust_domain().clone(),
        );
        let mut config = server_builder()
            .with_client_cert_verifier(Arc::new(clients))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(
                certificate.certified_key(),
            )));
        harden_server(&mut config);
        Arc::new(config)
    })
}

/// How the workload that owns `certificate` opens a tunnel to a server that
/// must be one of `allowed`.
///
/// The server must hold a certificate for server use that chains to the roots
/// in force. With an empty list nobody is accepted.
#[must_use]
pub fn client_config(certificate: &IssuedCertificate, allowed: &[Identity]) -> Arc<ClientConfig> {
    let server = TunnelServer::new(certificate.trust().clone(), allowed.to_vec());
    let mut config = client_builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(server))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(
            certificate.certified_key(),
        )));
    config.enable_sni = false;
    harden_client(&mut config);
    Arc::new(config)
}

/// Who the peer of an established connection is: the first SPIFFE URI of its
/// certificate that parses.
#[must_use]
pub fn peer_identity(connection: &CommonState) -> Option<Identity> {
    let leaf = connection.peer_certificates()?.first()?;
    identity_of(leaf).ok()
}

/// Who the peer of an established connection is, provided that both ends
/// agreed on HTTP/2: a peer that offers no application protocol at all passes
/// the handshake and is refused here.
///
/// # Errors
/// [`Fault::WrongProtocol`] or [`Fault::NoIdentity`].
pub fn verified_peer(connection: &CommonState) -> Result<Identity, Fault> {
    if connection.alpn_protocol() != Some(ALPN) {
        return Err(Fault::WrongProtocol);
    }
    peer_identity(connection).ok_or(Fault::NoIdentity)
}

pub(crate) fn server_builder() -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("invariant: the provider has TLS 1.3 suites and groups")
}

pub(crate) fn client_builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("invariant: the provider has TLS 1.3 suites and groups")
}

pub(crate) fn harden_server(config: &mut ServerConfig) {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
}

pub(crate) fn harden_client(config: &mut ClientConfig) {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
}
