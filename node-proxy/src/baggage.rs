//! What a tunnel's headers say of a workload.

use culvert_hbone::headers::{Baggage, WorkloadKind};
use culvert_model::{Workload, WorkloadType};

/// The baggage that describes a workload.
pub(crate) fn of(workload: &Workload) -> Baggage {
    let kind = match workload.workload_type {
        WorkloadType::Deployment => WorkloadKind::Deployment,
        WorkloadType::CronJob => WorkloadKind::CronJob,
        WorkloadType::Pod => WorkloadKind::Pod,
        WorkloadType::Job => WorkloadKind::Job,
    };
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Baggage {
        cluster: text(&workload.cluster_id),
        namespace: text(&workload.namespace),
        workload: text(&workload.workload_name).map(|name| (kind, name)),
        service: text(&workload.canonical_name),
        revision: text(&workload.canonical_revision),
        region: text(&workload.locality.region),
        zone: text(&workload.locality.zone),
    }
}
