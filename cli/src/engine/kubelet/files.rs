//! The files that a pod sees in place of the machine's: name resolution, host name
//! and volumes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::environment::{contents, field, hostname};
use crate::engine::controllers::services;
use crate::engine::object::{list, namespace, pod_ips, text};
use crate::engine::settings::{Families, Family};
use crate::engine::world::{World, write_whole};
use crate::state::StateDir;

/// A pod's file or volume cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    /// A file.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A volume.
    #[error("{0}")]
    Volume(String),
}

fn written(path: &Path, content: &[u8]) -> Result<(), FilesError> {
    write_whole(path, content).map_err(|source| FilesError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Text of the pod's resolv.conf.
pub(crate) fn resolv_conf(pod: &Value, families: Families, machine: &str) -> String {
    let policy = text(pod, "/spec/dnsPolicy").unwrap_or("ClusterFirst");
    if policy == "Default" {
        return machine.to_owned();
    }
    let mut servers = Vec::new();
    let mut search = Vec::new();
    let mut options = Vec::new();
    if policy != "None" {
        servers.extend(
            families
                .iter()
                .map(|family| services::address(10, family).to_string()),
        );
        let namespace = namespace(pod);
        search.push(format!("{namespace}.svc.cluster.local"));
        search.push("svc.cluster.local".to_owned());
        search.push("cluster.local".to_owned());
        options.push("ndots:5".to_owned());
    }
    let strings = |pointer: &str| {
        list(pod, pointer)
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
    };
    servers.extend(strings("/spec/dnsConfig/nameservers"));
    search.extend(strings("/spec/dnsConfig/searches"));
    for option in list(pod, "/spec/dnsConfig/options") {
        let Some(name) = text(option, "/name") else {
            continue;
        };
        options.retain(|held: &String| held.split(':').next() != Some(name));
        options.push(match text(option, "/value") {
            Some(value) => format!("{name}:{value}"),
            None => name.to_owned(),
        });
    }
    let mut lines: Vec<_> = servers
        .iter()
        .map(|server| format!("nameserver {server}\n"))
        .collect();
    if !search.is_empty() {
        lines.push(format!("search {}\n", search.join(" ")));
    }
    if !options.is_empty() {
        lines.push(format!("options {}\n", options.join(" ")));
    }
    lines.concat()
}

/// Text of the pod's hosts file.
pub(crate) fn hosts(pod: &Value, addresses: &[IpAddr]) -> String {
    let mut out = "127.0.0.1\tlocalhost\n\
                   ::1\tlocalhost ip6-localhost ip6-loopback\n\
                   fe00::0\tip6-localnet\n\
                   ff02::1\tip6-allnodes\n\
                   ff02::2\tip6-allrouters\n"
        .to_owned();
    let hostname = hostname(pod);
    let full = text(pod, "/spec/subdomain")
        .map(|sub| format!("{hostname}.{sub}.{}.svc.cluster.local\t", namespace(pod)))
        .unwrap_or_default();
    for address in addresses {
        out.push_str(&format!("{address}\t{full}{hostname}\n"));
    }
    for alias in list(pod, "/spec/hostAliases") {
        let names: Vec<_> = list(alias, "/hostnames")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        out.push_str(&format!(
            "{}\t{}\n",
            text(alias, "/ip").unwrap_or_default(),
            names.join("\t")
        ));
    }
    out
}

/// Writes the pod's own files; answers with what lies over what.
pub(crate) fn write_identity(
    directory: &Path,
    pod: &Value,
    addresses: &[IpAddr],
    machine_resolv: &str,
) -> Result<Vec<(PathBuf, PathBuf)>, FilesError> {
    let families: Families = addresses.iter().copied().map(Family::of).collect();
    let mut binds = Vec::new();
    for (name, content) in [
        ("resolv.conf", resolv_conf(pod, families, machine_resolv)),
        ("hosts", hosts(pod, addresses)),
        ("hostname", format!("{}\n", hostname(pod))),
    ] {
        let path = directory.join(name);
        // In place: a bind mount shows the file, not the name.
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, content))
            .map_err(|source| FilesError::Write {
                path: path.clone(),
                source,
            })?;
        let target = Path::new("/etc").join(name);
        if target.exists() {
            binds.push((path, target));
        }
    }
    Ok(binds)
}

/// Makes the pod's volumes; answers with each volume's directory.
pub(crate) fn write_volumes(
    state: &StateDir,
    world: &World,
    pod: &Value,
    directory: &Path,
) -> Result<BTreeMap<String, PathBuf>, FilesError> {
    let mut made = BTreeMap::new();
    for (index, volume) in list(pod, "/spec/volumes").iter().enumerate() {
        let Some(name) = text(volume, "/name") else {
            continue;
        };
        let own = directory.join("volumes").join(name);
        let path =
            write_volume(state, world, pod, (volume, &own)).map_err(|error| match error {
                FilesError::Volume(why) => {
                    FilesError::Volume(format!("spec.volumes[{index}] {name}: {why}"))
                }
                other => other,
            })?;
        made.insert(name.to_owned(), path);
    }
    Ok(made)
}

fn write_volume(
    state: &StateDir,
    world: &World,
    pod: &Value,
    (volume, own): (&Value, &Path),
) -> Result<PathBuf, FilesError> {
    let make = |path: &Path| {
        fs::create_dir_all(path).map_err(|source| FilesError::Write {
            path: path.to_owned(),
            source,
        })
    };
    if volume.get("emptyDir").is_some() {
        make(own)?;
        // Any user of the pod may write, as in a cluster.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(own, open).map_err(|source| FilesError::Write {
            path: own.to_owned(),
            source,
        })?;
        return Ok(own.to_owned());
    }
    if let Some(path) = text(volume, "/hostPath/path") {
        return Ok(PathBuf::from(path));
    }
    if let Some(claim) = text(volume, "/persistentVolumeClaim/claimName") {
        let kept = state
            .path("claims")
            .join(format!("{}.{claim}", namespace(pod)));
        make(&kept)?;
        return Ok(kept);
    }
    make(own)?;
    let sources: Vec<&Value> = match volume.pointer("/projected/sources") {
        Some(Value::Array(sources)) => sources.iter().collect(),
        _ => vec![volume],
    };
    for source in sources {
        for (path, content) in projected(world, pod, source).map_err(FilesError::Volume)? {
            if path.split('/').any(|part| part == "..") {
                return Err(FilesError::Volume(format!(
                    "path {path:?} leaves the volume"
                )));
            }
            written(&own.join(path), &content)?;
        }
    }
    Ok(own.to_owned())
}

/// Files of a ConfigMap, Secret or downward-API source.
fn projected(world: &World, pod: &Value, source: &Value) -> Result<Vec<(String, Vec<u8>)>, String> {
    let reference = |field: &str, key: &str| {
        let at = source.get(field)?;
        Some((
            at,
            text(at, key)
                .or_else(|| text(at, "/name"))
                .unwrap_or_default(),
        ))
    };
    let (kind, (at, name)) = if let Some(found) = reference("configMap", "/name") {
        ("ConfigMap", found)
    } else if let Some(found) = reference("secret", "/secretName") {
        ("Secret", found)
    } else if let Some(at) = source.get("downwardAPI") {
        return list(at, "/items")
            .iter()
            .map(|item| {
                let value = field(pod, text(item, "/fieldRef/fieldPath").unwrap_or_default())?;
                Ok((
                    text(item, "/path").unwrap_or_default().to_owned(),
                    value.into_bytes(),
                ))
            })
            .collect();
    } else {
        let known = "emptyDir, hostPath, persistentVolumeClaim, configMap, secret, projected or downwardAPI";
        return Err(format!("unknown kind of volume; expected {known}"));
    };
    let Some(all) = contents(world, namespace(pod), kind, name) else {
        let optional = at.get("optional") == Some(&Value::Bool(true));
        return if optional {
            Ok(Vec::new())
        } else {
            Err(format!("{kind} {name:?} not found"))
        };
    };
    let items = list(at, "/items");
    if items.is_empty() {
        return Ok(all.into_iter().collect());
    }
    items
        .iter()
        .map(|item| {
            let key = text(item, "/key").unwrap_or_default();
            let content = all
                .get(key)
                .ok_or_else(|| format!("{kind} {name} has no key {key:?}"))?;
            Ok((
                text(item, "/path").unwrap_or(key).to_owned(),
                content.clone(),
            ))
        })
        .collect()
}

/// What a container mounts where. A target that the machine does not have is made
/// and remembered, so that `down` takes it away.
pub(crate) fn mounts(
    state: &StateDir,
    container: &Value,
    volumes: &BTreeMap<String, PathBuf>,
) -> Result<Vec<(PathBuf, PathBuf)>, FilesError> {
    let mut binds = Vec::new();
    for (index, mount) in list(container, "/volumeMounts").iter().enumerate() {
        let field = format!("volumeMounts[{index}]");
        let name = text(mount, "/name").unwrap_or_default();
        let source = volumes
            .get(name)
            .ok_or_else(|| FilesError::Volume(format!("{field}.name: no volume {name:?}")))?;
        let source = match text(mount, "/subPath").filter(|path| !path.is_empty()) {
            None => source.clone(),
            Some(path) if Path::new(path).components().all(is_plain) => source.join(path),
            Some(path) => {
                return Err(FilesError::Volume(format!(
                    "{field}.subPath: {path:?} leaves the volume"
                )));
            }
        };
        if !source.exists() {
            fs::create_dir_all(&source).map_err(|error| FilesError::Write {
                path: source.clone(),
                source: error,
            })?;
        }
        let target = PathBuf::from(text(mount, "/mountPath").unwrap_or_default());
        if !target.is_absolute() {
            return Err(FilesError::Volume(format!(
                "{field}.mountPath: expected an absolute path"
            )));
        }
        ensure_target(state, &target, source.is_dir()).map_err(|error| FilesError::Write {
            path: target.clone(),
            source: error,
        })?;
        binds.push((source, target));
    }
    // Outer mounts first.
    binds.sort_by_key(|(_, target)| target.components().count());
    Ok(binds)
}

fn is_plain(component: std::path::Component<'_>) -> bool {
    matches!(component, std::path::Component::Normal(_))
}

fn ensure_target(state: &StateDir, target: &Path, directory: bool) -> io::Result<()> {
    let others = state.created_by_others();
    let missing: Vec<_> = target
        .ancestors()
        .take_while(|path| !path.exists() || others.contains(*path))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut list = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(state.created_paths())?;
    for path in missing.iter().rev() {
        writeln!(list, "{}", path.display())?;
    }
    list.flush()?;
    if directory {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    let create = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(target);
    create.map(|_| ())
}

/// Addresses of a pod for its hosts file.
pub(crate) fn addresses(pod: &Value) -> Vec<IpAddr> {
    pod_ips(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: &Value) -> Value {
        json!({"metadata": {"name": "db-0", "namespace": "shop"}, "spec": spec})
    }

    #[test]
    fn resolv_conf_follows_the_families() {
        let both = resolv_conf(&pod(&json!({})), Families::BOTH, "");
        assert_eq!(
            both,
            "nameserver 10.96.0.10\nnameserver fd00:10:96::a\n\
             search shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
        );
        let six = resolv_conf(&pod(&json!({})), [Family::V6].into_iter().collect(), "");
        assert!(six.starts_with("nameserver fd00:10:96::a\nsearch"));
        let own = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.2.3.4"],
                         "options": [{"name": "ndots", "value": "2"}]}});
        let text = resolv_conf(&pod(&own), Families::BOTH, "");
        assert_eq!(text, "nameserver 1.2.3.4\noptions ndots:2\n");
        assert_eq!(
            resolv_conf(&pod(&json!({"dnsPolicy": "Default"})), Families::BOTH, "x"),
            "x"
        );
    }

    #[test]
    fn hosts_name_the_pod() {
        let spec = json!({"hostname": "db-0", "subdomain": "peers",
                          "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "b"]}]});
        let text = hosts(&pod(&spec), &["10.244.1.2".parse().expect("address")]);
        assert!(
            text.contains("10.244.1.2\tdb-0.peers.shop.svc.cluster.local\tdb-0\n"),
            "{text}"
        );
        assert!(text.contains("10.0.0.1\ta\tb\n"), "{text}");
    }

    #[test]
    fn a_volume_stays_inside_itself() {
        let directory = tempfile::tempdir().expect("directory");
        let state = StateDir::new(directory.path(), "t").expect("state");
        let volumes = BTreeMap::from([("v".to_owned(), directory.path().to_owned())]);
        let container =
            json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "../y"}]});
        let error = mounts(&state, &container, &volumes).expect_err("refused");
        assert!(error.to_string().contains("subPath"), "{error}");
        let container = json!({"volumeMounts": [{"name": "w", "mountPath": "/x"}]});
        let error = mounts(&state, &container, &volumes).expect_err("refused");
        assert!(error.to_string().contains("no volume \"w\""), "{error}");
    }
}
