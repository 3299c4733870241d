//! `/debug/pprof/profile`: processor samples of this process.
//! `/debug/pprof/heap`: what the kernel knows of its memory. There is no
//! allocation-site profile: the allocator in use keeps none, and an answer that
//! looked like one would mislead. `perf record -e page-faults` finds who grows.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Query;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use pprof::protos::Message;
use pprof::{ProfilerGuardBuilder, Report};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::chain;
use crate::metrics::Memory;

/// Samples a second and thread: 99, not 100, so as not to beat with timers.
const FREQUENCY_HZ: i32 = 99;
/// The profiler is one for the whole process (SIGPROF).
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
/// A minute is long enough for any profile and bounds the samples' memory.
const SECONDS_MAX: u64 = 60;

#[derive(Debug, Deserialize)]
pub(super) struct ProfileQuery {
    #[serde(default = "ten")]
    seconds: u64,
    #[serde(default)]
    format: ProfileFormat,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProfileFormat {
    /// The protobuf that `pprof` reads.
    #[default]
    Pprof,
    /// One stack a line with its count, for flame graph tools and eyes.
    Folded,
}

fn ten() -> u64 {
    10
}

pub(super) async fn processor(Query(query): Query<ProfileQuery>) -> Response {
    if query.seconds == 0 || query.seconds > SECONDS_MAX {
        let text = format!("seconds: expected 1 to {SECONDS_MAX}\n");
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    let Ok(_only) = ONE_AT_A_TIME.try_acquire() else {
        return (StatusCode::CONFLICT, "a profile is being taken already\n").into_response();
    };
    let report = match sample(Duration::from_secs(query.seconds)).await {
        Ok(report) => report,
        Err(error) => return failed(&error),
    };
    match query.format {
        ProfileFormat::Folded => folded(&report).into_response(),
        ProfileFormat::Pprof => match report.pprof() {
            Ok(profile) => (
                [(header::CONTENT_TYPE, "application/octet-stream")],
                profile.encode_to_vec(),
            )
                .into_response(),
            Err(error) => failed(&error),
        },
    }
}

async fn sample(time: Duration) -> Result<Report, pprof::Error> {
    let guard = ProfilerGuardBuilder::default()
        .frequency(FREQUENCY_HZ)
        .build()?;
    tokio::time::sleep(time).await;
    guard.report().build()
}

fn failed(error: &pprof::Error) -> Response {
    let text = format!("could not take a profile: {}\n", chain(error));
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

fn folded(report: &Report) -> String {
    let mut stacks = BTreeMap::new();
    for (frames, count) in &report.data {
        let mut stack = vec![frames.thread_name_or_id()];
        let symbols = frames
            .frames
            .iter()
            .rev()
            .flat_map(|frame| frame.iter().rev());
        stack.extend(symbols.map(ToString::to_string));
        *stacks.entry(stack.join(";")).or_insert(0_isize) += count;
    }
    stacks
        .into_iter()
        .map(|(stack, count)| format!("{stack} {count}\n"))
        .collect()
}

pub(super) async fn memory() -> Json<serde_json::Value> {
    let memory = Memory::read();
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let kib = |key| crate::metrics::field(&rollup, key).map(|value| value * 1024);
    Json(json!({
        "note": "memory of the process as the kernel counts it; no allocation sites",
        "residentBytes": memory.resident,
        "virtualBytes": memory.virtual_size,
        "threads": memory.threads,
        "proportionalBytes": kib("Pss:"),
        "anonymousBytes": kib("Anonymous:"),
        "privateDirtyBytes": kib("Private_Dirty:"),
        "lazyFreeBytes": kib("LazyFree:"),
    }))
}
