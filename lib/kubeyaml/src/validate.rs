//! What the API server would refuse and a mesh user would trip over.

mod names;
mod network_policy;
mod services;
mod workloads;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::{
    fault::Severity,
    kind::{Body, Kind},
    path::FieldPath,
    policy,
};

/// A value that is refused or doubtful.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    pub(crate) path: FieldPath,
    pub(crate) message: String,
}

/// Collects problems.
#[derive(Debug, Default)]
pub(crate) struct Check {
    pub(crate) problems: Vec<Problem>,
}

impl Check {
    fn error(&mut self, path: FieldPath, message: impl Into<String>) {
        self.push(Severity::Error, path, message.into());
    }

    fn warning(&mut self, path: FieldPath, message: impl Into<String>) {
        self.push(Severity::Warning, path, message.into());
    }

    fn push(&mut self, severity: Severity, path: FieldPath, message: String) {
        self.problems.push(Problem {
            severity,
            path,
            message,
        });
    }

    fn name(&mut self, path: FieldPath, result: Result<(), String>) {
        if let Err(message) = result {
            self.error(path, message);
        }
    }

    fn port(&mut self, path: FieldPath, port: i32) {
        if !(1..=65535).contains(&port) {
            self.error(
                path,
                format!("expected a port from 1 to 65535, found {port}"),
            );
        }
    }

    fn one_of(&mut self, path: FieldPath, value: Option<&str>, allowed: &[&str]) {
        if let Some(value) = value
            && !allowed.contains(&value)
        {
            let message = format!("expected one of {}, found {value:?}", allowed.join(", "));
            self.error(path, message);
        }
    }
}

/// Checks an object.
pub(crate) fn validate(body: &Body, check: &mut Check) {
    metadata(body.kind(), body.meta(), check);
    match body {
        Body::Pod(pod) => workloads::pod(pod, check),
        Body::Deployment(deployment) => workloads::deployment(deployment, check),
        Body::ReplicaSet(set) => workloads::replica_set(set, check),
        Body::StatefulSet(set) => workloads::stateful_set(set, check),
        Body::DaemonSet(set) => workloads::daemon_set(set, check),
        Body::Job(job) => workloads::job(job, check),
        Body::CronJob(job) => workloads::cron_job(job, check),
        Body::Service(service) => services::service(service, check),
        Body::EndpointSlice(slice) => services::endpoint_slice(slice, check),
        Body::NetworkPolicy(policy) => network_policy::network_policy(policy, check),
        Body::AuthorizationPolicy(object) => {
            // Such a policy is loaded, so that its status can say the same.
            for (path, message) in policy::authorization_faults(&object.metadata, &object.spec) {
                check.warning(path, message);
            }
        }
        Body::PeerAuthentication(object) => {
            for (path, message) in policy::peer_authentication_faults(&object.spec) {
                check.warning(path, message);
            }
        }
        Body::Namespace(_)
        | Body::ServiceAccount(_)
        | Body::Node(_)
        | Body::ConfigMap(_)
        | Body::Secret(_)
        | Body::Lease(_) => {}
    }
}

fn metadata(kind: Kind, meta: &ObjectMeta, check: &mut Check) {
    let path = FieldPath::at("metadata");
    match meta.name.as_deref() {
        None | Some("") => {
            let message = match meta.generate_name {
                Some(_) => "required: generateName needs an API server to complete it",
                None => "required",
            };
            check.error(path.key("name"), message);
        }
        Some(name) => check.name(
            path.key("name"),
            match kind {
                Kind::Namespace => names::dns_label(name),
                Kind::Service => names::dns_1035_label(name),
                _ => names::dns_subdomain(name),
            },
        ),
    }
    if let Some(namespace) = &meta.namespace {
        if kind.is_namespaced() {
            check.name(path.key("namespace"), names::dns_label(namespace));
        } else {
            check.warning(
                path.key("namespace"),
                format!("{kind} is cluster-scoped: the namespace has no effect"),
            );
        }
    }
    labels(&path.key("labels"), meta.labels.as_ref(), check);
    for key in meta.annotations.iter().flatten().map(|(key, _)| key) {
        let key_path = path.key("annotations").key(key);
        check.name(key_path, names::qualified_name(key));
    }
}

fn labels(
    path: &FieldPath,
    labels: Option<&std::collections::BTreeMap<String, String>>,
    check: &mut Check,
) {
    for (key, value) in labels.into_iter().flatten() {
        check.name(path.key(key), names::qualified_name(key));
        check.name(path.key(key), names::label_value(value));
    }
}

fn label_selector(path: &FieldPath, selector: &LabelSelector, check: &mut Check) {
    labels(
        &path.key("matchLabels"),
        selector.match_labels.as_ref(),
        check,
    );
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.key("matchExpressions").index(index);
        let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
        let operator = requirement.operator.as_str();
        check.one_of(path.key("operator"), Some(operator), &operators);
        let values = requirement.values.as_ref().map_or(0, Vec::len);
        match operator {
            "In" | "NotIn" if values == 0 => {
                check.error(
                    path.key("values"),
                    format!("required with operator {operator}"),
                );
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                check.error(
                    path.key("values"),
                    format!("must be empty with operator {operator}"),
                );
            }
            _ => {}
        }
    }
}
