//! The network, files and volumes of a pod: made step by step, so that a try that
//! failed half-way goes on where it stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;

use culvert_netns::{Netns, named_path};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::cni::Attachment;
use super::files;
use super::pod::{PodShared, Sandbox, host_addresses};
use super::{Context, NodeNet};
use crate::engine::network::addresses::{mac_text, node_number, pod_mac};
use crate::engine::network::pods::{PodNetwork, attach, detach};
use crate::engine::object::{annotation, name, namespace, text, uid};
use crate::engine::settings::{Families, Family, cluster_families};
use crate::engine::world::World;
use crate::processes::{self, Namespace};

/// Annotation with a pod's address families.
const FAMILIES: &str = "culvert.dev/ip-families";
/// Annotation that switches the kernel's IPv6 off.
const DISABLE_IPV6: &str = "culvert.dev/disable-ipv6";

/// A pod's network that was made.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    /// Name of the node.
    pub node: String,
    /// What was made.
    pub network: PodNetwork,
}

type BoxError = Box<dyn Error + Send + Sync>;

/// Why a pod cannot be placed.
#[derive(Debug, thiserror::Error)]
enum PlaceError {
    #[error("there is no node {0:?}")]
    NoNode(String),
    #[error("the pod is deleted")]
    Gone,
    #[error("all pod addresses of {0} are in use")]
    Full(String),
    #[error("metadata.annotations[{FAMILIES}]: {0:?}; expected IPv4, IPv6 or IPv4,IPv6")]
    Families(String),
}

/// Makes what is still missing. What was made is remembered in the pod between
/// tries.
pub(crate) async fn make(shared: &PodShared) -> Result<Sandbox, BoxError> {
    let (context, pod) = (&shared.context, &shared.pod);
    let node_name = text(pod, "/spec/nodeName").unwrap_or_default();
    let node = context
        .nodes
        .get(node_name)
        .ok_or_else(|| PlaceError::NoNode(node_name.to_owned()))?;
    if pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
        let netns = named_path(&context.names.node(node_name))?;
        return finish(shared, node, netns, host_addresses(shared));
    }
    let network = match shared.made() {
        Some(made) => made.network,
        None => make_network(shared, node, node_name).await?,
    };
    let netns = named_path(&network.netns)?;
    let mut sandbox = finish(shared, node, netns, network.addresses())?;
    sandbox.attachment = attachment(shared);
    if let Some(attachment) = &sandbox.attachment {
        let added = tokio::select! {
            added = attachment.add() => added.map_err(BoxError::from),
            _ = shared.deleted() => Err(PlaceError::Gone.into()),
        };
        if let Err(error) = added {
            // The specification asks for a DEL before the next ADD; it always succeeds.
            let _ = attachment.del().await;
            return Err(error);
        }
    }
    Ok(sandbox)
}

/// Makes namespace, link, addresses and routes.
async fn make_network(
    shared: &PodShared,
    node: &NodeNet,
    node_name: &str,
) -> Result<PodNetwork, BoxError> {
    let context = &shared.context;
    let network = plan(context, &shared.pod, node_name)?;
    let (netns, wanted) = (node.netns.clone(), network.clone());
    let made = tokio::task::spawn_blocking(move || attach(&netns, &wanted)).await?;
    if let Err(error) = made {
        context.release(node_name, network.number);
        return Err(error.into());
    }
    shared.set_made(Some(Made {
        node: node_name.to_owned(),
        network: network.clone(),
    }));
    Ok(network)
}

/// The pod's files, over a network that is there.
fn finish(
    shared: &PodShared,
    node: &NodeNet,
    netns: PathBuf,
    addresses: Vec<IpAddr>,
) -> Result<Sandbox, BoxError> {
    let (context, pod) = (&shared.context, &shared.pod);
    Ok(Sandbox {
        node: node.netns.clone(),
        netns,
        binds: files::write_identity(&shared.directory, pod, &addresses, &context.machine_resolv)?,
        volumes: volumes(shared, &context.store.snapshot())?,
        addresses,
        attachment: None,
    })
}

/// The pod's place in the mesh, if there is a mesh and a network.
pub(crate) fn attachment(shared: &PodShared) -> Option<Attachment> {
    let (context, pod) = (&shared.context, &shared.pod);
    let made = shared.made().filter(|_| context.settings.mesh_enabled)?;
    Some(Attachment {
        plugin: context.settings.bin_dir.join("culvert-cni"),
        run_dir: context.state.node(&made.node),
        container: uid(pod).to_owned(),
        netns: named_path(&made.network.netns).ok()?,
        pod: (namespace(pod).to_owned(), name(pod).to_owned()),
        mac: mac_text(pod_mac(made.network.node, made.network.number)),
        addresses: made.network.addresses(),
    })
}

fn volumes(
    shared: &PodShared,
    world: &World,
) -> Result<BTreeMap<String, PathBuf>, files::FilesError> {
    let pod = world.object(&shared.key).unwrap_or(&shared.pod);
    files::write_volumes(&shared.context.state, world, pod, &shared.directory)
}

fn plan(context: &Context, pod: &Value, node: &str) -> Result<PodNetwork, PlaceError> {
    let families = match annotation(pod, FAMILIES) {
        None => cluster_families(&context.store.snapshot()),
        Some(given) => given
            .parse()
            .map_err(|()| PlaceError::Families(given.to_owned()))?,
    };
    let disable_ipv6 = annotation(pod, DISABLE_IPV6) == Some("true");
    let families: Families = families
        .iter()
        .filter(|family| !(disable_ipv6 && *family == Family::V6))
        .collect();
    let number = context
        .reserve(node)
        .ok_or_else(|| PlaceError::Full(node.to_owned()))?;
    Ok(PodNetwork {
        netns: context.names.pod(namespace(pod), name(pod), uid(pod)),
        node: node_number(node).ok_or_else(|| PlaceError::NoNode(node.to_owned()))?,
        number,
        families,
        disable_ipv6,
    })
}

/// Writes the pod's volumes anew when one of the ConfigMaps or Secrets has changed.
/// Never ends.
///
/// # Cancel safety
/// Files are replaced whole, so dropping the future loses nothing.
pub(crate) async fn follow_volumes(shared: &PodShared) {
    let mut revisions = shared.context.store.watch();
    let mut written = sources(shared);
    loop {
        if revisions.changed().await.is_err() {
            return std::future::pending().await;
        }
        let now = sources(shared);
        if now == written {
            continue;
        }
        written = now;
        if let Err(error) = volumes(shared, &shared.context.store.snapshot()) {
            // The pod keeps what it has until the object is back.
            tracing::warn!(pod = %shared.key, error = culvert_runtime::chain(&error), "volumes");
        }
    }
}

/// Versions of the ConfigMaps and Secrets in the pod's namespace. Few change while a
/// pod runs, so all of them count instead of those that its volumes name.
fn sources(shared: &PodShared) -> Vec<String> {
    let world = shared.context.store.snapshot();
    let has_volumes = !crate::engine::object::list(&shared.pod, "/spec/volumes").is_empty();
    let kinds = ["ConfigMap", "Secret"].iter().filter(|_| has_volumes);
    kinds
        .flat_map(|kind| world.in_namespace(kind, namespace(&shared.pod)))
        .map(|object| {
            let version = text(object, "/metadata/resourceVersion").unwrap_or_default();
            format!("{}@{version}", name(object))
        })
        .collect()
}

/// Takes a pod out of the mesh, kills what is left in it, and takes its network away.
pub(crate) async fn unmake(shared: &PodShared) {
    let Some(made) = shared.made() else { return };
    let context = &shared.context;
    if let Some(attachment) = attachment(shared)
        && let Err(error) = attachment.del().await
    {
        tracing::warn!(pod = %shared.key, error = culvert_runtime::chain(&error), "CNI DEL");
    }
    if let Ok(netns) = Netns::open_named(&made.network.netns) {
        for pid in processes::inside(Namespace::Network, &BTreeSet::from([netns.inode()])) {
            processes::signal(pid, Signal::SIGKILL);
        }
    }
    if let Some(node) = context.nodes.get(&made.node) {
        let (netns, network) = (node.netns.clone(), made.network.clone());
        match tokio::task::spawn_blocking(move || detach(&netns, &network)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = culvert_runtime::chain(&error);
                tracing::warn!(netns = made.network.netns, error, "detach");
            }
            Err(error) => tracing::error!(%error, "detach broke"),
        }
    }
    context.release(&made.node, made.network.number);
    shared.set_made(None);
}
