//! In which order the types of one view reach a client.

use std::sync::Arc;

use culvert_api::proto::discovery::DeltaDiscoveryResponse;

use crate::kind::ResourceType;
use crate::resource::{ClientView, ResourceSet};

use super::server::{Removals, ServerSession};

const POLICIES: [ResourceType; 2] = [
    ResourceType::Authorization,
    ResourceType::EgressAuthorization,
];

/// The next response that brings a client closer to a view; `None` when it has
/// all of it, or has to acknowledge something first.
///
/// A workload is refused while it names a policy that its proxy does not know.
/// So policies go before the workloads that name them, and leave only after.
pub fn next_response(
    session: &mut ServerSession,
    view: &ClientView,
) -> Option<DeltaDiscoveryResponse> {
    let addresses = ResourceType::Address.url();
    for kind in POLICIES {
        // A client subscribes to all types before it acknowledges the first:
        // one that has not asked for workloads by then will not.
        let are_unused = if session.is_subscribed(addresses) {
            session.is_settled(addresses, &view.addresses)
        } else {
            session.is_answered(kind.url())
        };
        let removals = if are_unused {
            Removals::Now
        } else {
            Removals::Later
        };
        let response = session.respond(kind.url(), view.resources(kind), removals);
        if response.is_some() {
            return response;
        }
    }
    let policies_first = POLICIES
        .iter()
        .any(|kind| session.has_news(kind.url(), view.resources(*kind)));
    if !policies_first {
        let response = session.respond(addresses, &view.addresses, Removals::Now);
        if response.is_some() {
            return response;
        }
    }
    empty_answer(session)
}

/// A type of which there is nothing here: the client hears so, once.
fn empty_answer(session: &mut ServerSession) -> Option<DeltaDiscoveryResponse> {
    let others: Vec<String> = session
        .types()
        .filter(|url| ResourceType::from_url(url).is_none())
        .map(str::to_owned)
        .collect();
    let nothing = Arc::new(ResourceSet::default());
    others
        .iter()
        .find_map(|url| session.respond(url, &nothing, Removals::Now))
}
