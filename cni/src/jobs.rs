//! Work inside one pod's namespace. Everything here blocks: it runs on threads that
//! may.

use std::io;
use std::path::Path;

use culvert_netns::{Netns, NetnsError};
use culvert_nft::Capabilities;
use culvert_runtime::chain;

use crate::redirect::{self, Installed, Older, RedirectError};
use crate::rules::ProbeTarget;
use crate::state::{Job, JobDone, JobFault, Sandbox};

/// What all jobs need to know of this node.
#[derive(Debug, Clone)]
pub struct Node {
    /// The node's own namespace.
    pub netns: Netns,
    /// What its kernel can do.
    pub kernel: Capabilities,
}

/// A job's end with what the agent keeps of it.
#[derive(Debug)]
pub struct Ended {
    /// For the state machine.
    pub outcome: Result<JobDone, JobFault>,
    /// The pod's namespace, once it is open.
    pub netns: Option<Netns>,
    /// What was found and done, of an installation.
    pub installed: Option<Installed>,
}

/// Does a job. `opened` is the namespace that an earlier job opened.
#[must_use]
pub fn run(node: &Node, sandbox: &Sandbox, job: &Job, opened: Option<&Netns>) -> Ended {
    let mut ended = Ended {
        outcome: Ok(JobDone::Uninstalled),
        netns: None,
        installed: None,
    };
    ended.outcome = match job {
        Job::Open => open(node, sandbox).map(|netns| {
            ended.netns = Some(netns);
            JobDone::Opened
        }),
        Job::Install { rules, older } => same(node, sandbox, opened).and_then(|netns| {
            let older = match older {
                Some(connections) => Older::Keep(connections.clone()),
                None => Older::KeepOpen,
            };
            let result = netns.run(|| redirect::install(rules, node.kernel, &older));
            let (installed, connections) = flatten(result)?;
            ended.installed = Some(installed);
            Ok(JobDone::Installed(connections))
        }),
        Job::Uninstall => uninstall(node, sandbox),
    };
    ended
}

/// Writes the node's probe rules.
///
/// # Errors
/// When the kernel refuses.
pub fn set_probes(node: &Node, targets: &[ProbeTarget]) -> Result<(), String> {
    let result = node.netns.run(|| redirect::install_host(targets));
    match result {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(error) => Err(chain(&error)),
    }
}

fn flatten<T>(result: Result<Result<T, RedirectError>, NetnsError>) -> Result<T, JobFault> {
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(fault(chain(&error))),
        Err(error) => Err(fault(chain(&error))),
    }
}

fn fault(reason: String) -> JobFault {
    JobFault {
        reason,
        gone: false,
    }
}

/// Opens the sandbox's namespace.
fn find(path: &Path) -> Result<Netns, JobFault> {
    Netns::open(path).map_err(|error| JobFault {
        gone: is_gone(&error),
        reason: chain(&error),
    })
}

fn is_gone(error: &NetnsError) -> bool {
    match error {
        NetnsError::Open { source, .. } => source.kind() == io::ErrorKind::NotFound,
        // The file of a namespace that was unmounted.
        NetnsError::NotNetwork { .. } => true,
        _ => false,
    }
}

/// Opens the namespace and sees that it is the pod's: another pod's namespace at
/// that path would give its traffic a wrong identity.
fn open(node: &Node, sandbox: &Sandbox) -> Result<Netns, JobFault> {
    let netns = find(&sandbox.netns)?;
    if netns == node.netns {
        return Err(fault("the namespace is the node's own".to_owned()));
    }
    if sandbox.ips.is_empty() {
        return Err(fault("the runtime named no address of the pod".to_owned()));
    }
    let found = match netns.run(redirect::addresses) {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(fault(chain(&error))),
        Err(error) => return Err(fault(chain(&error))),
    };
    match sandbox.ips.iter().find(|ip| !found.contains(ip)) {
        None => Ok(netns),
        Some(ip) => Err(fault(format!(
            "the namespace {} does not have the pod's address {ip}",
            sandbox.netns.display()
        ))),
    }
}

/// The opened namespace, if it is still the one at the sandbox's path.
fn same(node: &Node, sandbox: &Sandbox, opened: Option<&Netns>) -> Result<Netns, JobFault> {
    let now = find(&sandbox.netns)?;
    match opened {
        Some(before) if *before == now && now != node.netns => Ok(now),
        _ => Err(JobFault {
            reason: "another namespace has taken the place of the pod's".to_owned(),
            gone: true,
        }),
    }
}

fn uninstall(node: &Node, sandbox: &Sandbox) -> Result<JobDone, JobFault> {
    let netns = find(&sandbox.netns)?;
    // Never take rules out of the node itself.
    if netns == node.netns {
        return Ok(JobDone::Uninstalled);
    }
    flatten(netns.run(redirect::uninstall)).map(|()| JobDone::Uninstalled)
}
