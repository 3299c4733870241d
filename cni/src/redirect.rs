//! Brings a network namespace to the state that the rules want: routes and ip rules,
//! kernel settings, then the nf_tables table, which switches it all on at once.
//!
//! Everything works in the namespace of the calling thread and blocks: run it by
//! `Netns::run` on a thread that may block.

use std::fs;
use std::io;

use culvert_netns::{SysctlError, read_sysctl, write_sysctl};
use culvert_nft::{Capabilities, Change, EnsureError, ensure, exists, remove};

use crate::rules::{
    Circumstances, Connection, Mechanism, PodRules, ProbeTarget, host_table, host_table_id,
    pod_table, pod_table_id,
};

mod routes;
mod sockets;

pub use routes::{RouteError, addresses};

/// The rules of a namespace could not be brought to the wanted state.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// nf_tables refused.
    #[error("cannot set up the redirect rules")]
    Rules(#[from] EnsureError),
    /// Removing the table failed.
    #[error("cannot remove the redirect rules")]
    Remove(#[from] culvert_nft::ApplyError),
    /// An ip rule or route was refused.
    #[error("cannot set up the redirect routes")]
    Routes(#[from] RouteError),
    /// A kernel setting was refused.
    #[error("cannot set up the kernel for the redirect")]
    Sysctl(#[from] SysctlError),
    /// The list of sockets could not be read.
    #[error("cannot read the connections of the pod")]
    Connections(#[source] io::Error),
}

/// Whether anything had to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All was as wanted.
    Unchanged,
    /// Something was missing or differed.
    Changed,
}

/// Which address families the namespace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    /// IPv6 is there and redirected.
    Redirected,
    /// The kernel has no IPv6 here, and no interface has an IPv6 address.
    Absent,
}

/// What [`install`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Whether anything had to be written.
    pub outcome: Outcome,
    /// IPv6.
    pub ipv6: Ipv6,
    /// Connections older than the enrolment that still pass untouched.
    pub established: usize,
}

/// When the pod's connections that are open now are left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Older {
    /// The rules are new to a pod that may be running: keep what is open.
    KeepOpen,
    /// The rules were there before: keep those of them that are still open.
    Keep(Vec<Connection>),
}

const FWMARK_ACCEPT: &str = "net.ipv4.tcp_fwmark_accept";
/// Per-namespace settings: name and value.
const SETTINGS_V4: &[(&str, &str)] = &[
    // The application's accepted socket inherits the mark of the first packet.
    (FWMARK_ACCEPT, "1"),
    // A RST for a closed port finds its way to the spoofed socket.
    ("net.ipv4.fwmark_reflect", "1"),
    // A listener of a group may close without its queued connections being reset.
    ("net.ipv4.tcp_migrate_req", "1"),
];
const SETTINGS_V6: &[(&str, &str)] = &[("net.ipv6.fwmark_reflect", "1")];

/// Writes the rules of a pod into the calling thread's namespace, as far as they
/// differ. Gives the connections to pass to the next call as [`Older::Keep`].
///
/// # Errors
/// When the kernel refuses a part; the table, which switches the redirect on, is
/// written last.
pub fn install(
    rules: &PodRules,
    kernel: Capabilities,
    older: &Older,
) -> Result<(Installed, Vec<Connection>), RedirectError> {
    let open = sockets::open_connections().map_err(RedirectError::Connections)?;
    let established: Vec<Connection> = match older {
        Older::KeepOpen => open.into_iter().collect(),
        Older::Keep(before) => before
            .iter()
            .filter(|connection| open.contains(connection))
            .copied()
            .collect(),
    };
    let ipv6 = ipv6();
    let mut changed = settings(ipv6)?;
    changed |= routes::install(ipv6)?;
    let circumstances = Circumstances {
        mechanism: mechanism(kernel),
        socket_match: kernel.socket,
        established: established.clone(),
    };
    changed |= ensure(&pod_table(rules, &circumstances))? != Change::Unchanged;
    let installed = Installed {
        outcome: outcome(changed),
        ipv6,
        established: established.len(),
    };
    Ok((installed, established))
}

/// The way to redirect on this kernel.
#[must_use]
pub fn mechanism(kernel: Capabilities) -> Mechanism {
    if kernel.tproxy && kernel.route_chain {
        Mechanism::Tproxy
    } else {
        Mechanism::Redirect
    }
}

/// Takes everything out again that [`install`] put in; what is not there is fine.
///
/// # Errors
/// When the kernel refuses.
pub fn uninstall() -> Result<(), RedirectError> {
    // Not even asking for its removal where it never was: that would load modules.
    if exists(&pod_table_id()).unwrap_or(true) {
        remove(&pod_table_id())?;
    }
    routes::remove()?;
    for (name, _) in SETTINGS_V4.iter().chain(SETTINGS_V6) {
        // The kernel's default; a setting that this kernel lacks was never set.
        if read_sysctl(name).is_ok_and(|value| value != "0") {
            write_sysctl(name, "0")?;
        }
    }
    Ok(())
}

/// Brings the node's own rules to the wanted state.
///
/// # Errors
/// When the kernel refuses.
pub fn install_host(targets: &[ProbeTarget]) -> Result<Outcome, RedirectError> {
    let changed = ensure(&host_table(targets))? != Change::Unchanged;
    Ok(outcome(changed))
}

/// Takes the node's own rules away.
///
/// # Errors
/// When the kernel refuses.
pub fn uninstall_host() -> Result<(), RedirectError> {
    Ok(remove(&host_table_id())?)
}

fn outcome(changed: bool) -> Outcome {
    if changed {
        Outcome::Changed
    } else {
        Outcome::Unchanged
    }
}

/// IPv6 counts as absent only where no interface has an address of it and none can
/// get one: a half-working IPv6 must be redirected too.
fn ipv6() -> Ipv6 {
    let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    let off = read_sysctl("net.ipv6.conf.all.disable_ipv6").is_ok_and(|value| value == "1");
    let no_kernel = read_sysctl("net.ipv6.conf.all.disable_ipv6").is_err();
    if addresses.trim().is_empty() && (off || no_kernel) {
        Ipv6::Absent
    } else {
        Ipv6::Redirected
    }
}

fn settings(ipv6: Ipv6) -> Result<bool, SysctlError> {
    let mut changed = false;
    for (name, value) in SETTINGS_V4 {
        changed |= set(name, value)?;
    }
    if ipv6 == Ipv6::Redirected {
        for (name, value) in SETTINGS_V6 {
            changed |= set(name, value)?;
        }
        // The route to the loopback interface needs IPv6 on it.
        changed |= set("net.ipv6.conf.lo.disable_ipv6", "0")?;
    }
    Ok(changed)
}

fn set(name: &str, value: &str) -> Result<bool, SysctlError> {
    match read_sysctl(name) {
        Ok(found) if found == value => Ok(false),
        // tcp_migrate_req came with Linux 5.14; without it the listeners must not
        // form groups, which they do not.
        Err(_) if name == "net.ipv4.tcp_migrate_req" => Ok(false),
        _ => {
            write_sysctl(name, value)?;
            Ok(true)
        }
    }
}
