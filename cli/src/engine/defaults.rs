//! Defaults that the API server would set, and what of an object the cluster owns
//! and a new version from a file must not undo.

use serde_json::{Value, json};

use super::object::{set, set_default, text};

/// Completes an object from a file. `before` is what the cluster holds of it.
pub(crate) fn admit(object: &mut Value, before: Option<&Value>) {
    match text(object, "/kind") {
        Some("Pod") => pod(object),
        Some("Namespace") => set_default(object, &["status"], json!({"phase": "Active"})),
        Some("Deployment" | "ReplicaSet" | "StatefulSet") => {
            set_default(object, &["spec", "replicas"], json!(1));
        }
        _ => {}
    }
    let Some(before) = before else { return };
    if let Some(status) = before.get("status") {
        set(object, &["status"], status.clone());
    }
    if text(object, "/kind") == Some("Service") {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let same_type = object.pointer("/spec/type").is_none_or(|kind| {
                kind == before.pointer("/spec/type").unwrap_or(&json!("ClusterIP"))
            });
            if let Some(kept) = before
                .pointer(&format!("/spec/{field}"))
                .filter(|_| same_type)
            {
                set_default(object, &["spec", field], kept.clone());
            }
        }
    }
}

/// Defaults of a pod.
pub(crate) fn pod(pod: &mut Value) {
    for (field, value) in [
        ("serviceAccountName", json!("default")),
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("terminationGracePeriodSeconds", json!(30)),
    ] {
        set_default(pod, &["spec", field], value);
    }
    for list in ["containers", "initContainers"] {
        let containers = pod
            .pointer_mut(&format!("/spec/{list}"))
            .and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let ports = container
                .pointer_mut("/ports")
                .and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten() {
                set_default(port, &["protocol"], json!("TCP"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_version_keeps_address_and_status() {
        let before = json!({"kind": "Service", "spec": {"type": "ClusterIP", "clusterIP": "10.96.1.1"},
                            "status": {"loadBalancer": {}}});
        let mut service = json!({"kind": "Service", "spec": {"ports": []}});
        admit(&mut service, Some(&before));
        assert_eq!(service["spec"]["clusterIP"], json!("10.96.1.1"));
        assert_eq!(service["status"], before["status"]);
        let mut external = json!({"kind": "Service", "spec": {"type": "ExternalName"}});
        admit(&mut external, Some(&before));
        assert!(external["spec"].get("clusterIP").is_none());
    }

    #[test]
    fn pods_get_the_usual_defaults() {
        let mut object =
            json!({"kind": "Pod", "spec": {"containers": [{"ports": [{"containerPort": 1}]}]}});
        admit(&mut object, None);
        assert_eq!(object["spec"]["serviceAccountName"], json!("default"));
        assert_eq!(
            object["spec"]["containers"][0]["ports"][0]["protocol"],
            json!("TCP")
        );
    }
}
