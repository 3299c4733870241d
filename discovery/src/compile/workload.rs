//! Workloads: pods, and endpoints that are no pods.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::SystemTime};

use culvert_identity::Identity;
use culvert_model::{
    Health, Locality, NetworkMode, TunnelProtocol, Workload, WorkloadType, WorkloadUid,
};

use super::{Attached, Compiled, Context, members::External};
use crate::index::{Name, NodeHealth, OwnerKind, Pod};

/// What workloads are made from, besides pods.
pub(super) struct Inputs<'a> {
    pub(super) context: Context<'a, 'a>,
    pub(super) now: SystemTime,
    pub(super) attached: &'a Attached<'a>,
    pub(super) sets: &'a HashMap<&'a Name, Vec<Arc<str>>>,
}

/// Makes all workloads.
pub(super) fn workloads(inputs: &Inputs<'_>, compiled: &mut Compiled) {
    for (name, pod) in inputs.context.pods.all() {
        if let Some(workload) = inputs.pod(name, pod) {
            compiled.workloads.insert(workload.uid.clone(), workload);
        }
    }
    for ((_, address), external) in &inputs.context.members.externals {
        if let Some(workload) = inputs.external(*address, external) {
            compiled.workloads.insert(workload.uid.clone(), workload);
        }
    }
}

impl Inputs<'_> {
    fn pod(&self, name: &Name, pod: &Pod) -> Option<Workload> {
        let (namespace, cluster) = (&name.namespace, &self.context.settings.cluster_id);
        let trust_domain = &self.context.settings.trust_domain;
        let identity = Identity::new(trust_domain, namespace, &pod.service_account)
            .inspect_err(|error| tracing::warn!(pod = %name, %error, "pod has no identity"))
            .ok()?;
        let uid = WorkloadUid::new(format!("{cluster}//Pod/{namespace}/{}", name.name));
        let mut workload = Workload::new(uid, name.name.clone(), identity);
        workload.addresses.clone_from(&pod.addresses);
        workload.hostname = self.hostname(name, pod).unwrap_or_default().into();
        workload.tunnel_protocol = if pod.enrolled && !pod.host_network {
            TunnelProtocol::Hbone
        } else {
            TunnelProtocol::None
        };
        workload.node = pod.node.clone();
        workload.cluster_id = cluster.clone();
        self.name_for_people(&mut workload, name, pod);
        workload.health = self.health(pod);
        workload.services = self.context.members.ports(name);
        workload.locality = self.locality(&pod.node);
        if pod.host_network {
            workload.network_mode = NetworkMode::HostNetwork;
        }
        let policies =
            |attached: &HashMap<&Name, Vec<_>>| attached.get(name).cloned().unwrap_or_default();
        workload.authorization_policies = policies(&self.attached.ingress);
        workload.egress_policies = policies(&self.attached.egress);
        workload.peer_sets = self.sets.get(name).cloned().unwrap_or_default();
        Some(workload)
    }

    /// Owner, and the names by which dashboards know it.
    fn name_for_people(&self, workload: &mut Workload, name: &Name, pod: &Pod) {
        let owner = self.context.world.root_owner(&name.namespace, pod);
        workload.workload_type = match owner.as_ref().map(|owner| owner.kind) {
            Some(OwnerKind::Deployment) => WorkloadType::Deployment,
            Some(OwnerKind::CronJob) => WorkloadType::CronJob,
            Some(OwnerKind::Job) => WorkloadType::Job,
            Some(OwnerKind::ReplicaSet | OwnerKind::Other) | None => WorkloadType::Pod,
        };
        workload.workload_name = owner.map_or_else(|| name.name.clone(), |owner| owner.name);
        let label = |keys: &[&str]| {
            let mut values = keys.iter().filter_map(|key| pod.labels.get(*key));
            values.next().map(|value| Arc::<str>::from(value.as_str()))
        };
        workload.canonical_name = label(&[
            "service.istio.io/canonical-name",
            "app.kubernetes.io/name",
            "app",
        ])
        .unwrap_or_else(|| workload.workload_name.clone());
        workload.canonical_revision = label(&[
            "service.istio.io/canonical-revision",
            "app.kubernetes.io/version",
            "version",
        ])
        .unwrap_or_else(|| "latest".into());
    }

    fn health(&self, pod: &Pod) -> Health {
        let node = self.context.world.node_health(&pod.node, self.now);
        if pod.ready && !pod.terminating && node == NodeHealth::Alive {
            Health::Healthy
        } else {
            Health::Unhealthy
        }
    }

    fn locality(&self, node: &str) -> Locality {
        let Some(node) = self.context.world.nodes.get(node) else {
            return Locality::default();
        };
        Locality {
            region: node.region.as_str().into(),
            zone: node.zone.as_str().into(),
            subzone: node.subzone.as_str().into(),
        }
    }

    /// The name of a pod under its headless service.
    fn hostname(&self, name: &Name, pod: &Pod) -> Option<String> {
        let (hostname, subdomain) = (pod.hostname.as_ref()?, pod.subdomain.as_ref()?);
        let service = Name::new(&name.namespace, subdomain);
        let headless = self.context.world.services.get(&service)?.headless;
        let domain = &self.context.settings.cluster_domain;
        headless.then(|| format!("{hostname}.{subdomain}.{}.svc.{domain}", name.namespace))
    }

    fn external(&self, address: IpAddr, external: &External) -> Option<Workload> {
        let (namespace, service) = (&external.service.namespace, &external.service.name);
        let cluster = &self.context.settings.cluster_id;
        let uid =
            format!("{cluster}/discovery.k8s.io/EndpointSlice/{namespace}/{service}/{address}");
        let identity =
            Identity::new(&self.context.settings.trust_domain, namespace, "default").ok()?;
        let name = format!("{service}-{address}");
        let mut workload = Workload::new(WorkloadUid::new(uid), name, identity);
        workload.addresses = vec![address];
        workload.cluster_id = cluster.clone();
        workload.canonical_name = service.clone();
        workload.canonical_revision = "latest".into();
        workload.workload_name = service.clone();
        workload.workload_type = WorkloadType::Pod;
        workload.node = external.node.clone().unwrap_or_default();
        workload.locality = self.locality(&workload.node);
        workload.services.clone_from(&external.ports);
        let node = self.context.world.node_health(&workload.node, self.now);
        if !external.ready || node == NodeHealth::Dead {
            workload.health = Health::Unhealthy;
        }
        Some(workload)
    }
}
