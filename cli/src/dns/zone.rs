//! What `cluster.local` holds, and the answer to a question about it. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SOA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use serde_json::Value;

use crate::engine::controllers::services::{addresses, is_external_name, is_headless};
use crate::engine::object::{labels, list, name, namespace, text};

/// The cluster's domain.
const DOMAIN: &str = "cluster.local";
/// How long an answer may be kept: pods come and go.
const TTL_SECONDS: u32 = 5;
/// How many aliases are followed before the client has to go on itself.
const ALIASES_MAX: usize = 8;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Addresses(Vec<IpAddr>),
    Alias(String),
    Services(Vec<(u16, String)>),
    /// A name that only has names below it.
    Nothing,
}

/// All names below the cluster's domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Zone {
    entries: BTreeMap<String, Entry>,
}

/// What is to be done with a query.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Send this.
    Reply(Box<Message>),
    /// The name is not the cluster's.
    Outside,
}

impl Zone {
    /// The zone of a cluster's Services and EndpointSlices.
    pub(crate) fn new(services: &[Value], slices: &[Value]) -> Self {
        let mut zone = Self::default();
        for top in [
            DOMAIN.to_owned(),
            format!("svc.{DOMAIN}"),
            format!("pod.{DOMAIN}"),
        ] {
            zone.entries.insert(top, Entry::Nothing);
        }
        zone.text_version();
        for service in services {
            let own = slices.iter().filter(|slice| {
                namespace(slice) == namespace(service)
                    && labels(slice).get("kubernetes.io/service-name") == Some(&name(service))
            });
            zone.add(service, &own.collect::<Vec<_>>());
        }
        zone
    }

    fn text_version(&mut self) {
        // Clients of the specification look for this name to find a Kubernetes zone.
        self.entries
            .insert(format!("dns-version.{DOMAIN}"), Entry::Nothing);
    }

    fn add(&mut self, service: &Value, slices: &[&Value]) {
        let parent = format!("{}.svc.{DOMAIN}", namespace(service));
        self.entries.entry(parent.clone()).or_insert(Entry::Nothing);
        let own = format!("{}.{parent}", name(service));
        if is_external_name(service) {
            let target = text(service, "/spec/externalName").unwrap_or_default();
            self.entries.insert(
                own,
                Entry::Alias(target.trim_end_matches('.').to_lowercase()),
            );
            return;
        }
        if is_headless(service) {
            self.add_headless(service, slices, &own);
        } else {
            self.entries
                .insert(own.clone(), Entry::Addresses(addresses(service)));
            for port in list(service, "/spec/ports") {
                let number = port.get("port").and_then(Value::as_u64).unwrap_or_default();
                self.add_port(
                    &own,
                    port,
                    u16::try_from(number).unwrap_or_default(),
                    own.clone(),
                );
            }
        }
    }

    fn add_headless(&mut self, service: &Value, slices: &[&Value], own: &str) {
        let mut all = Vec::new();
        for slice in slices {
            for endpoint in list(slice, "/endpoints") {
                let ready = endpoint
                    .pointer("/conditions/ready")
                    .and_then(Value::as_bool);
                if ready == Some(false) {
                    continue;
                }
                let ips = list(endpoint, "/addresses")
                    .iter()
                    .filter_map(|ip| ip.as_str()?.parse().ok());
                let ips: Vec<IpAddr> = ips.collect();
                let host = text(endpoint, "/hostname")
                    .map(str::to_owned)
                    .or_else(|| ips.first().map(dashed));
                let Some(host) = host else { continue };
                let host = format!("{}.{own}", host.to_lowercase());
                match self
                    .entries
                    .entry(host.clone())
                    .or_insert_with(|| Entry::Addresses(Vec::new()))
                {
                    Entry::Addresses(held) => held.extend(&ips),
                    other => *other = Entry::Addresses(ips.clone()),
                }
                all.extend(&ips);
                for port in list(slice, "/ports") {
                    let number = port.get("port").and_then(Value::as_u64).unwrap_or_default();
                    self.add_port(
                        own,
                        port,
                        u16::try_from(number).unwrap_or_default(),
                        host.clone(),
                    );
                }
            }
        }
        let _ = service;
        self.entries.insert(own.to_owned(), Entry::Addresses(all));
    }

    fn add_port(&mut self, own: &str, port: &Value, number: u16, target: String) {
        let Some(port_name) = text(port, "/name").filter(|port_name| !port_name.is_empty()) else {
            return;
        };
        let protocol = text(port, "/protocol").unwrap_or("TCP").to_lowercase();
        self.entries
            .entry(format!("_{protocol}.{own}"))
            .or_insert(Entry::Nothing);
        let key = format!("_{port_name}._{protocol}.{own}");
        match self
            .entries
            .entry(key)
            .or_insert_with(|| Entry::Services(Vec::new()))
        {
            Entry::Services(held) if !held.contains(&(number, target.clone())) => {
                held.push((number, target));
            }
            _ => {}
        }
    }

    fn entry(&self, name: &str) -> Option<Entry> {
        if let Some(entry) = self.entries.get(name) {
            return Some(entry.clone());
        }
        let pod = name.strip_suffix(&format!(".pod.{DOMAIN}"))?;
        let (address, namespace) = pod.split_once('.')?;
        (!namespace.is_empty() && !namespace.contains('.'))
            .then(|| undashed(address))
            .flatten()
            .map(|ip| Entry::Addresses(vec![ip]))
    }

    /// Answers a query.
    pub(crate) fn answer(&self, query: &Message) -> Outcome {
        let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
        reply.metadata.recursion_desired = query.metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.queries.clone_from(&query.queries);
        if query.metadata.message_type != MessageType::Query
            || query.metadata.op_code != OpCode::Query
        {
            reply.metadata.response_code = ResponseCode::NotImp;
            return Outcome::Reply(Box::new(reply));
        }
        let [question] = &query.queries[..] else {
            reply.metadata.response_code = ResponseCode::FormErr;
            return Outcome::Reply(Box::new(reply));
        };
        let asked = plain(question.name());
        if !is_inside(&asked) || question.query_class() != DNSClass::IN {
            return Outcome::Outside;
        }
        reply.metadata.authoritative = true;
        self.fill(&mut reply, question.name(), &asked, question.query_type());
        Outcome::Reply(Box::new(reply))
    }

    fn fill(&self, reply: &mut Message, owner: &Name, asked: &str, kind: RecordType) {
        let (mut owner, mut asked) = (owner.clone(), asked.to_owned());
        for _ in 0..ALIASES_MAX {
            match self.entry(&asked) {
                None => {
                    reply.metadata.response_code = ResponseCode::NXDomain;
                    reply.authorities.extend(soa());
                    return;
                }
                Some(Entry::Alias(target)) => {
                    let Ok(to) = Name::from_ascii(format!("{target}.")) else {
                        return;
                    };
                    let alias = RData::CNAME(CNAME(to.clone()));
                    reply
                        .answers
                        .push(Record::from_rdata(owner, TTL_SECONDS, alias));
                    if kind == RecordType::CNAME || !is_inside(&target) {
                        return;
                    }
                    (owner, asked) = (to, target);
                }
                Some(entry) => {
                    self.records(reply, &owner, &entry, kind);
                    if reply.answers.is_empty() {
                        reply.authorities.extend(soa());
                    }
                    return;
                }
            }
        }
    }

    fn records(&self, reply: &mut Message, owner: &Name, entry: &Entry, kind: RecordType) {
        let address = |owner: &Name, ip: &IpAddr| match ip {
            IpAddr::V4(ip) => Record::from_rdata(owner.clone(), TTL_SECONDS, RData::A(A(*ip))),
            IpAddr::V6(ip) => {
                Record::from_rdata(owner.clone(), TTL_SECONDS, RData::AAAA(AAAA(*ip)))
            }
        };
        let wanted = |ip: &IpAddr| match kind {
            RecordType::A => ip.is_ipv4(),
            RecordType::AAAA => ip.is_ipv6(),
            RecordType::ANY => true,
            _ => false,
        };
        match entry {
            Entry::Addresses(ips) => {
                reply.answers.extend(
                    ips.iter()
                        .filter(|ip| wanted(ip))
                        .map(|ip| address(owner, ip)),
                );
            }
            Entry::Services(ports) if matches!(kind, RecordType::SRV | RecordType::ANY) => {
                for (port, target) in ports {
                    let Ok(host) = Name::from_ascii(format!("{target}.")) else {
                        continue;
                    };
                    let service = RData::SRV(SRV::new(0, 100, *port, host.clone()));
                    reply
                        .answers
                        .push(Record::from_rdata(owner.clone(), TTL_SECONDS, service));
                    if let Some(Entry::Addresses(ips)) = self.entry(target) {
                        reply
                            .additionals
                            .extend(ips.iter().map(|ip| address(&host, ip)));
                    }
                }
            }
            _ => {}
        }
    }
}

/// The answer for names outside when there is no way out: in a closed cluster they
/// do not exist.
pub(crate) fn no_such_name(query: &Message, code: ResponseCode) -> Message {
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.response_code = code;
    reply.queries.clone_from(&query.queries);
    reply
}

fn is_inside(name: &str) -> bool {
    name == DOMAIN || name.ends_with(&format!(".{DOMAIN}"))
}

fn plain(name: &Name) -> String {
    name.to_lowercase()
        .to_ascii()
        .trim_end_matches('.')
        .to_owned()
}

/// An address as a label: `10-244-1-2`.
fn dashed(ip: &IpAddr) -> String {
    ip.to_string().replace(['.', ':'], "-")
}

fn undashed(label: &str) -> Option<IpAddr> {
    label
        .replace('-', ".")
        .parse()
        .ok()
        .or_else(|| label.replace('-', ":").parse().ok())
}

/// The zone's own record, which tells how long a "no" may be kept.
fn soa() -> Option<Record> {
    let name = |text: &str| Name::from_ascii(text).ok();
    let zone = name(&format!("{DOMAIN}."))?;
    let soa = SOA::new(
        name(&format!("ns.dns.{DOMAIN}."))?,
        name(&format!("hostmaster.{DOMAIN}."))?,
        1,
        7200,
        1800,
        86400,
        TTL_SECONDS,
    );
    Some(Record::from_rdata(zone, TTL_SECONDS, RData::SOA(soa)))
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;
    use serde_json::json;

    use super::*;

    fn zone() -> Zone {
        let services = [
            json!({"metadata": {"name": "web", "namespace": "shop"},
                   "spec": {"clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1", "fd00:10:96::5"],
                            "ports": [{"name": "http", "port": 80}]}}),
            json!({"metadata": {"name": "db", "namespace": "shop"}, "spec": {"clusterIP": "None"}}),
            json!({"metadata": {"name": "out", "namespace": "shop"},
                   "spec": {"type": "ExternalName", "externalName": "example.org"}}),
            json!({"metadata": {"name": "alias", "namespace": "shop"},
                   "spec": {"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"}}),
        ];
        let slices = [json!({"metadata": {"name": "s", "namespace": "shop",
                "labels": {"kubernetes.io/service-name": "db"}},
            "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": ["10.244.1.2"], "hostname": "db-0", "conditions": {"ready": true}},
                {"addresses": ["10.244.1.3"], "hostname": "db-1", "conditions": {"ready": false}}]})];
        Zone::new(&services, &slices)
    }

    fn ask(name: &str, kind: RecordType) -> Option<(ResponseCode, Vec<String>)> {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).expect("name"), kind));
        match zone().answer(&query) {
            Outcome::Outside => None,
            Outcome::Reply(reply) => Some((
                reply.metadata.response_code,
                reply
                    .answers
                    .iter()
                    .map(|record| record.data.to_string())
                    .collect(),
            )),
        }
    }

    fn check(name: &str, kind: RecordType, code: ResponseCode, expect: &[&str]) {
        let (found, answers) = ask(name, kind).expect("inside");
        assert_eq!(
            (
                found,
                answers.iter().map(String::as_str).collect::<Vec<_>>()
            ),
            (code, expect.to_vec()),
            "{name} {kind}"
        );
    }

    #[test]
    fn names() {
        use RecordType::{A, AAAA, CNAME, SRV, TXT};
        let ok = ResponseCode::NoError;
        check("web.shop.svc.cluster.local.", A, ok, &["10.96.1.1"]);
        check("WEB.shop.svc.cluster.local.", AAAA, ok, &["fd00:10:96::5"]);
        check("web.shop.svc.cluster.local.", TXT, ok, &[]);
        check("db.shop.svc.cluster.local.", A, ok, &["10.244.1.2"]);
        check("db-0.db.shop.svc.cluster.local.", A, ok, &["10.244.1.2"]);
        check("db-0.db.shop.svc.cluster.local.", AAAA, ok, &[]);
        check(
            "_http._tcp.web.shop.svc.cluster.local.",
            SRV,
            ok,
            &["0 100 80 web.shop.svc.cluster.local."],
        );
        check(
            "_sql._tcp.db.shop.svc.cluster.local.",
            SRV,
            ok,
            &["0 100 5432 db-0.db.shop.svc.cluster.local."],
        );
        check("out.shop.svc.cluster.local.", A, ok, &["example.org."]);
        check(
            "alias.shop.svc.cluster.local.",
            CNAME,
            ok,
            &["web.shop.svc.cluster.local."],
        );
        check(
            "alias.shop.svc.cluster.local.",
            A,
            ok,
            &["web.shop.svc.cluster.local.", "10.96.1.1"],
        );
        check("10-244-1-9.shop.pod.cluster.local.", A, ok, &["10.244.1.9"]);
        check("shop.svc.cluster.local.", A, ok, &[]);
    }

    #[test]
    fn what_is_not_there() {
        for name in [
            "nope.shop.svc.cluster.local.",
            "db-1.db.shop.svc.cluster.local.",
            "x.cluster.local.",
        ] {
            check(name, RecordType::A, ResponseCode::NXDomain, &[]);
        }
        assert!(ask("example.org.", RecordType::A).is_none());
        assert!(ask("notcluster.local.", RecordType::A).is_none());
    }
}
