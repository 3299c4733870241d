//! The network, files and volumes of a pod: made step by step, so that a try that
//! failed half-way goes on where it stopped.

use std::error::Error;
use std::path::PathBuf;

use culvert_netns::named_path;
use serde_json::Value;

use super::Context;
use super::cni::Attachment;
use super::files;
use super::pod::{PodShared, Sandbox, host_addresses};
use crate::engine::network::addresses::{mac_text, node_number, pod_mac};
use crate::engine::network::pods::{PodNetwork, attach, detach};
use crate::engine::object::{annotation, name, namespace, text, uid};
use crate::engine::settings::{Families, cluster_families};
use crate::engine::world::World;

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
    #[error("all pod addresses of {0} are in use")]
    Full(String),
    #[error("metadata.annotations[{FAMILIES}]: {0:?}; expected IPv4, IPv6 or IPv4,IPv6")]
    Families(String),
}

/// Makes what is still missing. `made` remembers the network between tries.
pub(crate) async fn make(shared: &PodShared, made: &mut Option<Made>) -> Result<Sandbox, BoxError> {
    let (context, pod) = (&shared.context, &shared.pod);
    let node_name = text(pod, "/spec/nodeName").unwrap_or_default();
    let node = context
        .nodes
        .get(node_name)
        .ok_or_else(|| PlaceError::NoNode(node_name.to_owned()))?;
    if pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true)) {
        let addresses = host_addresses(shared);
        return Ok(Sandbox {
            node: node.netns.clone(),
            netns: named_path(&context.names.node(node_name))?,
            binds: files::write_identity(
                &shared.directory,
                pod,
                &addresses,
                &context.machine_resolv,
            )?,
            volumes: volumes(shared, &context.store.snapshot())?,
            addresses,
            made: None,
            attachment: None,
        });
    }
    let network = match made {
        Some(made) => made.network.clone(),
        None => {
            let network = plan(context, pod, node_name)?;
            let (netns, wanted) = (node.netns.clone(), network.clone());
            // Remembered before it is made: a failed try is taken away by the next.
            *made = Some(Made {
                node: node_name.to_owned(),
                network: network.clone(),
            });
            tokio::task::spawn_blocking(move || attach(&netns, &wanted))
                .await?
                .inspect_err(|_| {
                    context.release(node_name, network.number);
                    *made = None;
                })?;
            network
        }
    };
    let addresses = network.addresses();
    let netns = named_path(&network.netns)?;
    let binds = files::write_identity(&shared.directory, pod, &addresses, &context.machine_resolv)?;
    let volumes = volumes(shared, &context.store.snapshot())?;
    let attachment = context.settings.mesh_enabled.then(|| Attachment {
        plugin: context.settings.bin_dir.join("culvert-cni"),
        run_dir: context.state.node(node_name),
        container: uid(pod).to_owned(),
        netns: netns.clone(),
        pod: (namespace(pod).to_owned(), name(pod).to_owned()),
        mac: mac_text(pod_mac(network.node, network.number)),
        addresses: addresses.clone(),
    });
    if let Some(attachment) = &attachment
        && let Err(error) = attachment.add().await
    {
        // The specification asks for a DEL before the next ADD; it always succeeds.
        let _ = attachment.del().await;
        return Err(error.into());
    }
    let made = made.clone();
    Ok(Sandbox {
        node: node.netns.clone(),
        netns,
        addresses,
        binds,
        volumes,
        made,
        attachment,
    })
}

fn volumes(
    shared: &PodShared,
    world: &World,
) -> Result<std::collections::BTreeMap<String, PathBuf>, files::FilesError> {
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
        .filter(|family| !(disable_ipv6 && *family == crate::engine::settings::Family::V6))
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

/// Takes a pod's network away.
pub(crate) async fn unmake(context: &Context, made: &Made) {
    let Some(node) = context.nodes.get(&made.node) else {
        return;
    };
    let (netns, network) = (node.netns.clone(), made.network.clone());
    let done = tokio::task::spawn_blocking(move || detach(&netns, &network)).await;
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(
                netns = made.network.netns,
                error = culvert_runtime::chain(&error),
                "detach"
            );
        }
        Err(error) => tracing::error!(%error, "detach broke"),
    }
    context.release(&made.node, made.network.number);
}

/// Removes the namespace of a pod whose making was cancelled half-way. The link
/// goes with it, and so do the routes.
pub(crate) async fn remove_leftovers(context: &Context, pod: &Value) {
    let netns = context.names.pod(namespace(pod), name(pod), uid(pod));
    let removed = tokio::task::spawn_blocking(move || culvert_netns::delete_named(&netns)).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(
            error = culvert_runtime::chain(&error),
            "remove a pod's namespace"
        );
    }
}
