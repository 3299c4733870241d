//! Pods and what makes them.

use std::collections::HashSet;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
        batch::v1::{CronJob, Job},
        core::v1::{Container, Pod, PodSpec, PodTemplateSpec, Probe},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{Check, label_selector, labels, names};
use crate::{path::FieldPath, selector};

pub(super) fn pod(pod: &Pod, check: &mut Check) {
    let path = FieldPath::at("spec");
    match &pod.spec {
        Some(spec) => pod_spec(&path, spec, None, check),
        None => check.error(path, "required"),
    }
    for (index, ip) in pod
        .status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten())
        .enumerate()
    {
        if ip.ip.parse::<std::net::IpAddr>().is_err() {
            let path = FieldPath::at("status.podIPs").index(index).key("ip");
            check.error(path, format!("expected an IP address, found {:?}", ip.ip));
        }
    }
}

pub(super) fn deployment(deployment: &Deployment, check: &mut Check) {
    let Some(spec) = required_spec(deployment.spec.as_ref(), check) else {
        return;
    };
    replicas(spec.replicas, check);
    selected_template(&spec.selector, &spec.template, check);
}

pub(super) fn replica_set(set: &ReplicaSet, check: &mut Check) {
    let Some(spec) = required_spec(set.spec.as_ref(), check) else {
        return;
    };
    replicas(spec.replicas, check);
    match &spec.template {
        Some(pods) => selected_template(&spec.selector, pods, check),
        None => check.error(FieldPath::at("spec.template"), "required"),
    }
}

pub(super) fn stateful_set(set: &StatefulSet, check: &mut Check) {
    let Some(spec) = required_spec(set.spec.as_ref(), check) else {
        return;
    };
    replicas(spec.replicas, check);
    selected_template(&spec.selector, &spec.template, check);
    if spec.service_name.as_deref().unwrap_or_default().is_empty() {
        check.warning(
            FieldPath::at("spec.serviceName"),
            "without a headless Service the pods have no names in DNS",
        );
    }
}

pub(super) fn daemon_set(set: &DaemonSet, check: &mut Check) {
    let Some(spec) = required_spec(set.spec.as_ref(), check) else {
        return;
    };
    selected_template(&spec.selector, &spec.template, check);
}

pub(super) fn job(job: &Job, check: &mut Check) {
    let Some(spec) = required_spec(job.spec.as_ref(), check) else {
        return;
    };
    let path = FieldPath::at("spec.template");
    template(&path, &spec.template, Some(&["Never", "OnFailure"]), check);
}

pub(super) fn cron_job(job: &CronJob, check: &mut Check) {
    let Some(spec) = required_spec(job.spec.as_ref(), check) else {
        return;
    };
    match &spec.job_template.spec {
        Some(job) => {
            let path = FieldPath::at("spec.jobTemplate.spec.template");
            template(&path, &job.template, Some(&["Never", "OnFailure"]), check);
        }
        None => check.error(FieldPath::at("spec.jobTemplate.spec"), "required"),
    }
}

fn required_spec<'a, T>(spec: Option<&'a T>, check: &mut Check) -> Option<&'a T> {
    if spec.is_none() {
        check.error(FieldPath::at("spec"), "required");
    }
    spec
}

fn replicas(replicas: Option<i32>, check: &mut Check) {
    if let Some(replicas) = replicas
        && replicas < 0
    {
        let message = format!("expected 0 or more, found {replicas}");
        check.error(FieldPath::at("spec.replicas"), message);
    }
}

fn selected_template(chosen: &LabelSelector, pods: &PodTemplateSpec, check: &mut Check) {
    let path = FieldPath::at("spec.selector");
    label_selector(&path, chosen, check);
    let empty = chosen.match_labels.as_ref().is_none_or(|l| l.is_empty())
        && chosen.match_expressions.as_ref().is_none_or(Vec::is_empty);
    let none = selector::Labels::new();
    let template_labels = pods.metadata.as_ref().and_then(|meta| meta.labels.as_ref());
    if empty {
        check.error(
            path,
            "required: labels that spec.template.metadata.labels has",
        );
    } else if !selector::selects(chosen, template_labels.unwrap_or(&none)) {
        check.error(
            FieldPath::at("spec.template.metadata.labels"),
            "must match spec.selector",
        );
    }
    template(
        &FieldPath::at("spec.template"),
        pods,
        Some(&["Always"]),
        check,
    );
}

fn template(
    path: &FieldPath,
    pods: &PodTemplateSpec,
    restart_policies: Option<&[&str]>,
    check: &mut Check,
) {
    let meta = pods.metadata.as_ref();
    labels(
        &path.join("metadata.labels"),
        meta.and_then(|meta| meta.labels.as_ref()),
        check,
    );
    match &pods.spec {
        Some(spec) => pod_spec(&path.key("spec"), spec, restart_policies, check),
        None => check.error(path.key("spec"), "required"),
    }
}

fn pod_spec(
    path: &FieldPath,
    spec: &PodSpec,
    restart_policies: Option<&[&str]>,
    check: &mut Check,
) {
    if spec.containers.is_empty() {
        check.error(path.key("containers"), "required: at least one container");
    }
    let any = ["Always", "OnFailure", "Never"];
    let path_policy = path.key("restartPolicy");
    let policy = spec.restart_policy.as_deref();
    match (policy, restart_policies) {
        // The default is Always, which a Job does not take.
        (None, Some(allowed)) if !allowed.contains(&"Always") => {
            let message = format!("required: one of {}", allowed.join(", "));
            check.error(path_policy, message);
        }
        (policy, allowed) => check.one_of(path_policy, policy, allowed.unwrap_or(&any)),
    }
    for field in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let (name, Some(value)) = field {
            check.name(path.key(name), names::dns_label(value));
        }
    }
    let volumes: HashSet<&str> = spec
        .volumes
        .iter()
        .flatten()
        .map(|volume| volume.name.as_str())
        .collect();
    let mut seen = HashSet::new();
    let init = spec.init_containers.iter().flatten();
    let all = init
        .enumerate()
        .map(|(index, container)| ("initContainers", index, container))
        .chain(
            spec.containers
                .iter()
                .enumerate()
                .map(|(index, container)| ("containers", index, container)),
        );
    for (list, index, container) in all {
        let path = path.key(list).index(index);
        if !seen.insert(container.name.as_str()) {
            let message = format!("two containers are named {:?}", container.name);
            check.error(path.key("name"), message);
        }
        self::container(&path, container, check);
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            if !volumes.contains(mount.name.as_str()) {
                let message = format!("no volume is named {:?}", mount.name);
                check.error(path.key("volumeMounts").index(index).key("name"), message);
            }
        }
    }
}

fn container(path: &FieldPath, container: &Container, check: &mut Check) {
    if container.name.is_empty() {
        check.error(path.key("name"), "required");
    } else {
        check.name(path.key("name"), names::dns_label(&container.name));
    }
    let no_image = container.image.as_deref().unwrap_or_default().is_empty();
    if no_image && container.command.as_ref().is_none_or(Vec::is_empty) {
        check.error(path.key("image"), "required");
    }
    let mut port_names = HashSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = path.key("ports").index(index);
        check.port(path.key("containerPort"), port.container_port);
        let protocols = ["TCP", "UDP", "SCTP"];
        check.one_of(path.key("protocol"), port.protocol.as_deref(), &protocols);
        if let Some(name) = &port.name {
            check.name(path.key("name"), names::port_name(name));
            if !port_names.insert(name.as_str()) {
                check.error(path.key("name"), format!("two ports are named {name:?}"));
            }
        }
    }
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = path.key("env").index(index);
        if variable.name.is_empty() || variable.name.contains('=') {
            let message = format!("expected a name without '=', found {:?}", variable.name);
            check.error(path.key("name"), message);
        }
        if variable.value.as_ref().is_some_and(|v| !v.is_empty()) && variable.value_from.is_some() {
            check.error(path.key("valueFrom"), "must not be set beside value");
        }
    }
    for (name, value) in [
        ("readinessProbe", &container.readiness_probe),
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        if let Some(value) = value {
            probe(&path.key(name), value, &port_names, check);
        }
    }
}

fn probe(path: &FieldPath, probe: &Probe, ports: &HashSet<&str>, check: &mut Check) {
    let handlers = [
        probe.exec.is_some(),
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
        probe.grpc.is_some(),
    ];
    if handlers.iter().filter(|set| **set).count() != 1 {
        check.error(
            path.clone(),
            "expected exactly one of exec, httpGet, tcpSocket, grpc",
        );
    }
    let http = probe.http_get.as_ref().map(|get| ("httpGet", &get.port));
    let tcp = probe
        .tcp_socket
        .as_ref()
        .map(|get| ("tcpSocket", &get.port));
    for (handler, port) in http.into_iter().chain(tcp) {
        let path = path.key(handler).key("port");
        match port {
            IntOrString::Int(port) => check.port(path, *port),
            IntOrString::String(name) if ports.contains(name.as_str()) => {}
            IntOrString::String(name) => {
                let message = format!("no port of the container is named {name:?}");
                check.error(path, message);
            }
        }
    }
    for (name, value, least) in [
        ("periodSeconds", probe.period_seconds, 1),
        ("timeoutSeconds", probe.timeout_seconds, 1),
        ("failureThreshold", probe.failure_threshold, 1),
        ("successThreshold", probe.success_threshold, 1),
        ("initialDelaySeconds", probe.initial_delay_seconds, 0),
    ] {
        if let Some(value) = value
            && value < least
        {
            check.error(
                path.key(name),
                format!("expected {least} or more, found {value}"),
            );
        }
    }
}
