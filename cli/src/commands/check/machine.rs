//! What has to hold on the machine before a mesh can run.

use std::fs;
use std::path::{Path, PathBuf};

use culvert_netns::{Netns, read_sysctl};

use super::Line;
use crate::engine::settings::Settings;
use crate::state::StateDir;

const GROUP: &str = "machine";
/// Files that one node proxy needs for a thousand connections, and room.
const FILES_MIN: u64 = 4096;
/// inotify instances: engine, DNS, discovery, CA and an agent a node.
const INOTIFY_MIN: u64 = 64;
/// The mesh's programs.
const PROGRAMS: [&str; 4] = [
    "culvert-ca",
    "culvert-cni",
    "culvert-discovery",
    "culvert-node-proxy",
];

/// All checks of the machine.
pub(super) fn lines(
    bin_dir: Option<&Path>,
    running: Option<&Settings>,
    state: &StateDir,
) -> Vec<Line> {
    let mut all = vec![root()];
    all.extend(kernel());
    all.push(programs(bin_dir, running));
    all.push(files());
    all.push(inotify());
    all.push(writable(state));
    all.push(resolv_conf());
    all.push(addresses(running));
    all
}

fn root() -> Line {
    let is_root = nix::unistd::geteuid().is_root();
    let complaint = (!is_root).then(|| {
        (
            format!("user {}", nix::unistd::geteuid()),
            "run culvert with sudo".to_owned(),
        )
    });
    Line::new(GROUP, "runs as root", complaint)
}

/// Features, tried in a namespace that goes away again.
fn kernel() -> Vec<Line> {
    let made = "network namespaces can be made";
    let netns = match Netns::create() {
        Ok(netns) => netns,
        Err(error) => {
            let hint = "run as root on a kernel with CONFIG_NET_NS, outside of a container without \
                        CAP_SYS_ADMIN";
            let complaint = (culvert_runtime::chain(&error), hint.to_owned());
            return vec![Line::new(GROUP, made, Some(complaint))];
        }
    };
    let mut all = vec![Line::new(GROUP, made, None)];
    all.extend(nf_tables(&netns));
    all.extend(settings(&netns));
    all
}

fn nf_tables(netns: &Netns) -> Vec<Line> {
    let probed = netns
        .run(culvert_nft::probe)
        .map_err(|error| culvert_runtime::chain(&error));
    let probed = probed.and_then(|probed| probed.map_err(|error| culvert_runtime::chain(&error)));
    let can = match probed {
        Ok(can) => can,
        Err(why) => {
            let hint = "load the module nf_tables (modprobe nf_tables)".to_owned();
            return vec![Line::new(GROUP, "nf_tables is usable", Some((why, hint)))];
        }
    };
    let absent = |hint: &str| ("not in this kernel".to_owned(), hint.to_owned());
    let slower = "load the modules nft_tproxy and nft_socket; until then connections are redirected \
                  by address translation, which is slower";
    let wanted = [
        ("nf_tables tproxy", can.tproxy),
        ("nf_tables socket", can.socket),
        ("nf_tables route chains", can.route_chain),
    ];
    let needed = [
        ("nf_tables redirect", can.redirect),
        ("nf_tables snat", can.snat),
    ];
    let mut all = vec![Line::new(GROUP, "nf_tables is usable", None)];
    for (name, works) in wanted {
        all.push(Line::new(GROUP, name, (!works).then(|| absent(slower))).mild());
    }
    for (name, works) in needed {
        let complaint = (!works).then(|| absent("load the module nft_nat"));
        all.push(Line::new(GROUP, name, complaint));
    }
    all
}

fn settings(netns: &Netns) -> Vec<Line> {
    let has = |setting: &str| matches!(netns.run(|| read_sysctl(setting)), Ok(Ok(_)));
    let mut all = Vec::new();
    for (name, setting) in [
        ("replies can follow a mark", "net.ipv4.tcp_fwmark_accept"),
        ("listeners survive a restart", "net.ipv4.tcp_migrate_req"),
    ] {
        let complaint = (!has(setting)).then(|| {
            let hint = "a kernel of 5.14 or later has it".to_owned();
            (format!("no setting {setting}"), hint)
        });
        all.push(Line::new(GROUP, name, complaint));
    }
    let complaint = (!has("net.ipv6.conf.all.disable_ipv6")).then(|| {
        let hint = "boot without ipv6.disable=1, or use --set ipFamilies=IPv4".to_owned();
        ("IPv6 is not in this kernel".to_owned(), hint)
    });
    all.push(Line::new(GROUP, "IPv6", complaint).mild());
    all
}

fn programs(bin_dir: Option<&Path>, running: Option<&Settings>) -> Line {
    let own = std::env::current_exe().ok();
    let directory: PathBuf = bin_dir
        .map(Path::to_path_buf)
        .or_else(|| running.map(|settings| settings.bin_dir.clone()))
        .or_else(|| own.and_then(|own| own.parent().map(Path::to_path_buf)))
        .unwrap_or_default();
    let missing: Vec<_> = PROGRAMS
        .iter()
        .filter(|name| !directory.join(name).is_file())
        .copied()
        .collect();
    let complaint = (!missing.is_empty()).then(|| {
        let found = format!("{} has no {}", directory.display(), missing.join(", "));
        (
            found,
            "build them with `cargo build --workspace`, or give --bin-dir".to_owned(),
        )
    });
    Line::new(GROUP, "the mesh's programs are there", complaint)
}

fn files() -> Line {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    let hard = limit.map(|(_, hard)| hard).unwrap_or_default();
    let complaint = (hard < FILES_MIN).then(|| {
        let hint =
            format!("raise the hard limit to at least {FILES_MIN} (ulimit -Hn, limits.conf)");
        (format!("hard limit of open files is {hard}"), hint)
    });
    Line::new(GROUP, "enough open files are allowed", complaint)
}

fn inotify() -> Line {
    let read = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances");
    let limit: u64 = read
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_default();
    let complaint = (limit < INOTIFY_MIN).then(|| {
        let hint = format!("sysctl -w fs.inotify.max_user_instances={INOTIFY_MIN}; until then edits are seen by polling");
        (format!("fs.inotify.max_user_instances is {limit}"), hint)
    });
    Line::new(GROUP, "enough inotify instances are allowed", complaint).mild()
}

fn writable(state: &StateDir) -> Line {
    let root = state.root().parent().unwrap_or(state.root());
    let existing = root
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    let writable = nix::unistd::access(existing, nix::unistd::AccessFlags::W_OK);
    let complaint = writable.err().map(|error| {
        (
            format!("{}: {error}", existing.display()),
            "mount it writable, as tmpfs if possible".to_owned(),
        )
    });
    Line::new(
        GROUP,
        format!("{} can be written", root.display()),
        complaint,
    )
}

fn resolv_conf() -> Line {
    let complaint = (!Path::new("/etc/resolv.conf").exists()).then(|| {
        let hint = "create it (it may be empty): pods see their own in its place".to_owned();
        ("no /etc/resolv.conf".to_owned(), hint)
    });
    Line::new(GROUP, "pods can have their own /etc/resolv.conf", complaint)
}

/// Ranges of the cluster matter outside of it only when there is a way out.
fn addresses(running: Option<&Settings>) -> Line {
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let taken: Vec<_> = routes.lines().skip(1).filter_map(overlap).collect();
    let egress = running.is_some_and(|settings| settings.egress);
    let complaint = (!taken.is_empty()).then(|| {
        let hint = "the cluster's own addresses win inside of it: with --egress pods cannot reach the \
                    machine's network of the same range";
        (format!("the machine has a route to {}", taken.join(", ")), hint.to_owned())
    });
    let line = Line::new(GROUP, "the cluster's address ranges are free", complaint);
    if egress { line } else { line.mild() }
}

/// The cluster's range that a line of /proc/net/route lies in.
fn overlap(line: &str) -> Option<String> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let hex = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let (to, mask) = (hex(fields.get(1)?)?, hex(fields.get(7)?)?);
    if mask == 0 {
        return None;
    }
    let ranges = [
        ([172, 30, 0, 0], 16, "172.30.0.0/16"),
        ([10, 244, 0, 0], 16, "10.244.0.0/16"),
        ([10, 96, 0, 0], 16, "10.96.0.0/16"),
    ];
    ranges.iter().find_map(|(address, prefix, name)| {
        let own_mask = u32::MAX << (32 - prefix);
        let shorter = mask & own_mask;
        (u32::from_be_bytes(*address) & shorter == to & shorter)
            .then(|| format!("{} ({name})", std::net::Ipv4Addr::from(to)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_routes() {
        let check =
            |line: &str, expect: bool| assert_eq!(overlap(line).is_some(), expect, "{line}");
        check("eth0 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0", false);
        check("eth0 0000A8C0 00000000 0001 0 0 100 0000FFFF 0 0 0", false);
        check("docker0 00001EAC 00000000 0001 0 0 0 0000FFFF 0 0 0", true);
        check("tun0 0000000A 00000000 0001 0 0 0 000000FF 0 0 0", true);
    }
}
