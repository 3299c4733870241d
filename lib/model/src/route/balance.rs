//! Preferring and drawing among endpoints.

use crate::service::{LoadBalancing, LoadBalancingMode, RoutingScope};
use crate::workload::Workload;

use super::endpoint::Candidate;

/// Leaves only the candidates that the preference puts first.
pub(super) fn prefer(
    candidates: &mut Vec<Candidate<'_>>,
    balancing: &LoadBalancing,
    source: &Workload,
) {
    let scopes = &balancing.routing_preference;
    let matching = |candidate: &Candidate<'_>| rank(scopes, source, &candidate.endpoint.workload);
    match balancing.mode {
        LoadBalancingMode::Unspecified | LoadBalancingMode::Passthrough => {}
        LoadBalancingMode::Strict => {
            candidates.retain(|candidate| matching(candidate) == scopes.len());
        }
        LoadBalancingMode::Failover => {
            if let Some(top) = candidates.iter().map(matching).max() {
                candidates.retain(|candidate| matching(candidate) == top);
            }
        }
    }
}

/// How many of the leading scopes the two have in common.
fn rank(scopes: &[RoutingScope], source: &Workload, endpoint: &Workload) -> usize {
    scopes
        .iter()
        .take_while(|scope| match scope {
            RoutingScope::Region => source.locality.region == endpoint.locality.region,
            RoutingScope::Zone => source.locality.zone == endpoint.locality.zone,
            RoutingScope::Subzone => source.locality.subzone == endpoint.locality.subzone,
            RoutingScope::Node => source.node == endpoint.node,
            RoutingScope::Cluster => source.cluster_id == endpoint.cluster_id,
            // Candidates on other networks were left out before.
            RoutingScope::Network => source.network == endpoint.network,
        })
        .count()
}

/// Draws an index with a probability in proportion to its weight; `None` when
/// there is no weight at all.
pub(super) fn draw(
    weights: impl Iterator<Item = u32> + Clone,
    rng: &mut dyn FnMut(u32) -> u32,
) -> Option<usize> {
    let total: u64 = weights.clone().map(u64::from).sum();
    if total == 0 {
        return None;
    }
    let mut left = below(total, rng);
    for (index, weight) in weights.enumerate() {
        match left.checked_sub(u64::from(weight)) {
            None => return Some(index),
            Some(rest) => left = rest,
        }
    }
    None
}

/// A number below the bound.
fn below(bound: u64, rng: &mut dyn FnMut(u32) -> u32) -> u64 {
    if let Ok(small) = u32::try_from(bound) {
        return u64::from(rng(small)).min(bound - 1);
    }
    // Weights this large differ by less than one draw in four billion.
    let drawn = u128::from(rng(u32::MAX)) * u128::from(bound) / u128::from(u32::MAX);
    u64::try_from(drawn).unwrap_or(bound - 1).min(bound - 1)
}
