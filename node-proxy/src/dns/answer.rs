//! What the mesh knows about a query. Pure: bytes and a snapshot in, bytes out.

use std::net::IpAddr;

use culvert_model::{Health, HealthPolicy, Service, ServiceName, Snapshot};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use rand::Rng;
use rand::seq::SliceRandom;

use super::names::{Candidate, NameScope, candidates, wildcards};

/// Long enough to spare a busy client most queries, short enough for a moved service.
const TTL_SECONDS: u32 = 30;
/// A header.
const QUERY_BYTES_MIN: usize = 12;
/// What we take over UDP; beyond it fragments get lost.
const UDP_PAYLOAD: u16 = 1232;

/// How the query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams: the answer must fit what the client takes.
    Udp,
    /// A stream.
    Tcp,
}

/// What to do with a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Send this.
    Reply(Vec<u8>),
    /// Not ours: ask the servers of the machine with the same bytes.
    Forward,
    /// Not a query at all.
    Drop,
}

/// Judges a query by the bytes it came in.
pub fn answer(
    query: &[u8],
    snapshot: &Snapshot,
    scope: &NameScope<'_>,
    transport: Transport,
) -> Outcome {
    let is_response = query.get(2).is_none_or(|flags| flags & 0x80 != 0);
    if query.len() < QUERY_BYTES_MIN || is_response {
        return Outcome::Drop;
    }
    // What we cannot read another server perhaps can.
    let Ok(message) = Message::from_vec(query) else {
        return Outcome::Forward;
    };
    let Some((name, kind)) = question(&message) else {
        return Outcome::Forward;
    };
    let Some((found, addresses)) = resolve(snapshot, scope, &plain(name)) else {
        return Outcome::Forward;
    };
    let mut addresses: Vec<IpAddr> = addresses
        .into_iter()
        .filter(|ip| ip.is_ipv4() == (kind == RecordType::A))
        .collect();
    shuffle(&mut addresses, &mut rand::rng());
    let Some(answers) = records(name, &found, &addresses) else {
        return Outcome::Forward;
    };
    match encode(&message, answers, transport) {
        Some(bytes) => Outcome::Reply(bytes),
        None => Outcome::Forward,
    }
}

/// The answer when nobody else could give one.
#[must_use]
pub fn server_failure(query: &[u8]) -> Option<Vec<u8>> {
    if let Ok(message) = Message::from_vec(query) {
        let mut reply = reply_to(&message);
        reply.metadata.response_code = ResponseCode::ServFail;
        reply.metadata.authoritative = false;
        return reply.to_vec().ok();
    }
    let id = query.get(..2)?;
    Some(vec![id[0], id[1], 0x80, 0x82, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// The question, if it is one for an address.
fn question(message: &Message) -> Option<(&Name, RecordType)> {
    let [query] = &message.queries[..] else {
        return None;
    };
    let ours = message.metadata.message_type == MessageType::Query
        && message.metadata.op_code == OpCode::Query
        && query.query_class() == DNSClass::IN
        && matches!(query.query_type(), RecordType::A | RecordType::AAAA);
    ours.then(|| (query.name(), query.query_type()))
}

fn plain(name: &Name) -> String {
    let text = name.to_lowercase().to_ascii();
    text.strip_suffix('.').map(str::to_owned).unwrap_or(text)
}

fn resolve(
    snapshot: &Snapshot,
    scope: &NameScope<'_>,
    name: &str,
) -> Option<(Candidate, Vec<IpAddr>)> {
    let all = candidates(name, scope);
    let exact = all.iter().find_map(|candidate| {
        Some((
            candidate.clone(),
            addresses_of(snapshot, scope, &candidate.host)?,
        ))
    });
    exact.or_else(|| {
        all.iter().find_map(|candidate| {
            let found = wildcards(&candidate.host)
                .find_map(|wildcard| addresses_of(snapshot, scope, &wildcard))?;
            Some((candidate.clone(), found))
        })
    })
}

/// The addresses behind a host name; none when it is not ours to answer. They are
/// of both families: one that is asked for and missing is an empty answer.
fn addresses_of(snapshot: &Snapshot, scope: &NameScope<'_>, host: &str) -> Option<Vec<IpAddr>> {
    let in_cluster = host
        .strip_suffix(scope.domain)
        .is_some_and(|rest| rest.ends_with(".svc."));
    if let Some(service) = snapshot.service_named(host, scope.namespace) {
        let virtual_addresses: Vec<IpAddr> = virtual_addresses(snapshot, service).collect();
        if !virtual_addresses.is_empty() {
            return Some(virtual_addresses);
        }
        if in_cluster {
            return some(endpoint_addresses(snapshot, service, |_| true));
        }
    }
    let (pod, service_host) = host.split_once('.')?;
    let service = snapshot
        .service_named(service_host, scope.namespace)
        .filter(|_| in_cluster)?;
    if !service.addresses.is_empty() {
        return None;
    }
    some(endpoint_addresses(snapshot, service, |workload| {
        // A StatefulSet's pod has its own name as its host name.
        *workload.name == *pod || workload.hostname.split('.').next() == Some(pod)
    }))
}

fn some(addresses: Vec<IpAddr>) -> Option<Vec<IpAddr>> {
    (!addresses.is_empty()).then_some(addresses)
}

fn virtual_addresses<'a>(
    snapshot: &'a Snapshot,
    service: &'a Service,
) -> impl Iterator<Item = IpAddr> + 'a {
    service
        .addresses
        .iter()
        .filter(|address| address.is_host() && *address.network == *snapshot.network())
        .map(|address| address.net.addr())
        .filter(|ip| service.ip_families.allows(*ip))
}

fn endpoint_addresses(
    snapshot: &Snapshot,
    service: &Service,
    wanted: impl Fn(&culvert_model::Workload) -> bool,
) -> Vec<IpAddr> {
    let name: &ServiceName = &service.name;
    let all = service.load_balancing.health_policy == HealthPolicy::AllowAll;
    snapshot
        .endpoints(name)
        .iter()
        .map(|endpoint| &endpoint.workload)
        .filter(|workload| all || workload.health == Health::Healthy)
        .filter(|workload| *workload.network == *snapshot.network() && wanted(workload))
        .flat_map(|workload| workload.addresses.iter().copied())
        .filter(|ip| service.ip_families.allows(*ip))
        .collect()
}

fn shuffle(addresses: &mut [IpAddr], random: &mut impl Rng) {
    addresses.shuffle(random);
}

/// None when the alias is no name, which cannot be for what came off a name.
fn records(name: &Name, found: &Candidate, addresses: &[IpAddr]) -> Option<Vec<Record>> {
    let mut records = Vec::with_capacity(addresses.len() + 1);
    let mut owner = name.clone();
    if let Some(alias) = &found.alias {
        let mut target = Name::from_ascii(alias).ok()?;
        target.set_fqdn(true);
        records.push(Record::from_rdata(
            owner,
            TTL_SECONDS,
            RData::CNAME(CNAME(target.clone())),
        ));
        owner = target;
    }
    for ip in addresses {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A(*ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(*ip)),
        };
        records.push(Record::from_rdata(owner.clone(), TTL_SECONDS, data));
    }
    Some(records)
}

fn reply_to(query: &Message) -> Message {
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.checking_disabled = query.metadata.checking_disabled;
    reply.metadata.authoritative = true;
    // As it came, also its letters' case.
    reply.add_queries(query.queries.iter().cloned());
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD).set_version(0);
        reply.set_edns(edns);
    }
    reply
}

fn encode(query: &Message, answers: Vec<Record>, transport: Transport) -> Option<Vec<u8>> {
    let mut reply = reply_to(query);
    reply.add_answers(answers);
    let limit = match transport {
        Transport::Udp => usize::from(query.max_payload()),
        Transport::Tcp => usize::from(u16::MAX),
    };
    let bytes = reply.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    // The client asks again over TCP.
    reply.truncate().to_vec().ok()
}

#[cfg(test)]
mod tests;
