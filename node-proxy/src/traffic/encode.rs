//! How the metrics are exposed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use culvert_model::Reject;
use culvert_tls::Fault;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

use super::labels::Flagged;
use super::{DenialLabels, Flag, Inner, Reporter, Series, Shed, TrafficMetrics, lock};

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;

impl Collector for TrafficMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let series: Vec<Arc<Series>> = lock(&self.inner.series).values().cloned().collect();
        encode_series(&series, &mut encoder)?;
        encode_denials(&self.inner, &mut encoder)?;
        encode_totals(&self.inner, &mut encoder)
    }
}

fn encode_series(series: &[Arc<Series>], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let opened = Family::new("istio_tcp_connections_opened", "Connections opened");
    opened.encode(encoder, series, |one, add| {
        add(Flag::None, one.opened.load(Ordering::Relaxed))
    })?;
    let closed = Family::new("istio_tcp_connections_closed", "Connections closed");
    closed.encode(encoder, series, |one, add| {
        each_flag(one, add, |_, count| count > 0)
    })?;
    let failed = Family::new(
        "istio_tcp_connections_failed",
        "Connections that a fault or a policy ended",
    );
    failed.encode(encoder, series, |one, add| {
        each_flag(one, add, |flag, count| flag != Flag::None && count > 0)
    })?;
    let received = Family::new("istio_tcp_received_bytes", "Bytes from client to server");
    received.encode(encoder, series, |one, add| {
        add(Flag::None, one.received.load(Ordering::Relaxed))
    })?;
    let sent = Family::new("istio_tcp_sent_bytes", "Bytes from server to client");
    sent.encode(encoder, series, |one, add| {
        add(Flag::None, one.sent.load(Ordering::Relaxed))
    })
}

fn each_flag(
    one: &Series,
    add: &mut dyn FnMut(Flag, u64) -> fmt::Result,
    shown: fn(Flag, u64) -> bool,
) -> fmt::Result {
    for flag in Flag::ALL {
        let count = one.closed[flag as usize].load(Ordering::Relaxed);
        if shown(flag, count) {
            add(flag, count)?;
        }
    }
    Ok(())
}

struct Family {
    name: &'static str,
    help: &'static str,
}

impl Family {
    const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }

    fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        series: &[Arc<Series>],
        read: impl Fn(&Series, &mut dyn FnMut(Flag, u64) -> fmt::Result) -> fmt::Result,
    ) -> fmt::Result {
        let mut family =
            encoder.encode_descriptor(self.name, self.help, None, MetricType::Counter)?;
        for one in series {
            read(one, &mut |flag, count| {
                let labels = Flagged(&one.labels, flag);
                let mut metric = family.encode_family(&labels)?;
                metric.encode_counter(&count, None as NoExemplar<'_>)
            })?;
        }
        Ok(())
    }

    /// A counter with one label of a closed set.
    fn encode_set<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        kind: MetricType,
        values: impl Iterator<Item = (Vec<(&'static str, &'a str)>, i64)>,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for (labels, value) in values {
            let mut metric = family.encode_family(&labels)?;
            if matches!(kind, MetricType::Gauge) {
                metric.encode_gauge(&value)?;
            } else {
                metric.encode_counter(&value.unsigned_abs(), None as NoExemplar<'_>)?;
            }
        }
        Ok(())
    }
}

impl EncodeLabelSet for DenialLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, value) in [
            ("reporter", self.reporter.as_str()),
            ("policy", &self.policy),
            ("rule", &self.rule),
            ("source_principal", &self.source_principal),
            ("destination_principal", &self.destination_principal),
            ("destination_workload", &self.destination_workload),
            (
                "destination_workload_namespace",
                &self.destination_namespace,
            ),
        ] {
            (name, value).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

fn encode_denials(inner: &Inner, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let denials: Vec<(DenialLabels, u64)> = {
        let denials = lock(&inner.denials);
        denials
            .iter()
            .map(|(labels, denial)| (labels.clone(), denial.count))
            .collect()
    };
    let help = "Connections that a policy refused or closed";
    let mut family =
        encoder.encode_descriptor("culvert_policy_denials", help, None, MetricType::Counter)?;
    for (labels, count) in &denials {
        let mut metric = family.encode_family(labels)?;
        metric.encode_counter(count, None as NoExemplar<'_>)?;
    }
    Ok(())
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn encode_totals(inner: &Inner, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let totals = &inner.totals;
    let count = |counter: &AtomicU64| signed(counter.load(Ordering::Relaxed));
    let sides = [Reporter::Source, Reporter::Destination];

    let handshakes = Family::new(
        "culvert_handshake_failures",
        "Tunnels whose handshake failed",
    );
    let values = sides.into_iter().flat_map(|side| {
        let one = &totals.handshakes[side as usize];
        Fault::ALL
            .into_iter()
            .zip(one)
            .map(move |(fault, counter)| {
                (
                    vec![("reporter", side.as_str()), ("reason", fault.reason())],
                    count(counter),
                )
            })
    });
    handshakes.encode_set(encoder, MetricType::Counter, values.filter(|(_, n)| *n > 0))?;

    let rejects = Family::new("culvert_route_rejects", "Connections without a safe way");
    let values = Reject::ALL.into_iter().zip(&totals.rejects);
    let values = values.map(|(reject, n)| (vec![("reason", reject.reason())], count(n)));
    rejects.encode_set(encoder, MetricType::Counter, values)?;

    let shed = Family::new(
        "culvert_connections_shed",
        "Connections not taken for want of room",
    );
    let values = Shed::ALL.into_iter().zip(&totals.shed);
    let values = values.map(|(why, n)| (vec![("reason", why.as_str())], count(n)));
    shed.encode_set(encoder, MetricType::Counter, values)?;

    encode_gauges(inner, encoder)?;
    encode_plain(inner, encoder)
}

fn encode_gauges(inner: &Inner, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let totals = &inner.totals;
    let sides = [Reporter::Source, Reporter::Destination];
    for (name, help, gauges) in [
        (
            "istio_tcp_sockets_open",
            "Sockets of applications that are open",
            &totals.sockets,
        ),
        (
            "culvert_tunnels_open",
            "Tunnels that are open",
            &totals.tunnels,
        ),
    ] {
        let values = sides.into_iter().zip(gauges).map(|(side, gauge)| {
            (
                vec![("reporter", side.as_str())],
                gauge.load(Ordering::Relaxed),
            )
        });
        Family::new(name, help).encode_set(encoder, MetricType::Gauge, values)?;
    }

    Ok(())
}

fn encode_plain(inner: &Inner, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let totals = &inner.totals;
    let count = |counter: &AtomicU64| signed(counter.load(Ordering::Relaxed));
    for (name, help, counter) in [
        (
            "culvert_endpoint_ejections",
            "Endpoints taken out of use",
            &totals.ejections,
        ),
        (
            "culvert_connections_without_client_address",
            "Inbound connections for which the client's address could not be kept",
            &totals.unspoofed,
        ),
        (
            "culvert_connection_panics",
            "Connections that ended in a panic",
            &totals.panics,
        ),
    ] {
        let value = std::iter::once((Vec::new(), count(counter)));
        Family::new(name, help).encode_set(encoder, MetricType::Counter, value)?;
    }
    Ok(())
}
