//! What the access log says of a connection while it lives.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};

use culvert_identity::{Identity, TrustDomain};
use culvert_model::WorkloadUid;
use culvert_netns::Netns;

use super::*;
use crate::access_log::{AccessLog, Format};
use crate::pods::PodDiag;
use crate::traffic::Security;

struct Lines(Sender<String>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for line in String::from_utf8_lossy(bytes).lines() {
            // The test may have seen enough.
            let _ = self.0.send(line.to_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged() -> (Rc<Connections>, Receiver<String>) {
    let (sender, lines) = channel();
    let log = AccessLog::start(Format::Text, Box::new(Lines(sender))).expect("starts");
    let buffer = LogBuffer::new(log);
    let connections = Connections::new(TrafficMetrics::default(), buffer);
    (Rc::new(connections), lines)
}

fn facts() -> Facts {
    let domain: TrustDomain = "cluster.local".parse().expect("trust domain");
    let pod = Pod {
        uid: "uid".into(),
        name: "a".into(),
        namespace: "shop".into(),
        identity: Identity::new(&domain, "shop", "a").expect("identity"),
        workload: WorkloadUid::from("c//Pod/shop/a"),
        netns: Netns::current().expect("own namespace"),
        diag: PodDiag::default(),
    };
    Facts {
        direction: Direction::Outbound,
        pod: Arc::new(pod),
        security: Security::Plain,
        client: "10.0.0.1:4000".parse().expect("address"),
        hop: "10.0.0.2:80".parse().expect("address"),
        authority: None,
        source: None,
        destination: None,
        service: None,
        source_identity: None,
        started: Instant::now(),
        trace: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_lasts_is_logged_from_time_to_time() {
    let (connections, lines) = logged();
    let check = Check {
        ingress: None,
        egress: None,
    };
    let open = connections.open(facts(), check);
    connections.log_lasting();
    tokio::time::advance(LOG_INTERVAL / 2).await;
    connections.log_lasting();
    culvert_hbone::relay::Meter::sent(&*open.record, 7);
    tokio::time::advance(LOG_INTERVAL / 2).await;
    connections.log_lasting();
    connections.log_lasting();
    open.end(End::complete());
    connections.log.flush();
    drop(connections);
    let lines: Vec<String> = lines.iter().collect();
    let messages = [
        "connection opened",
        "connection open",
        "connection complete",
    ];
    assert_eq!(lines.len(), messages.len(), "{lines:?}");
    for (line, message) in lines.iter().zip(messages) {
        assert!(line.contains(message), "{message} in {line}");
    }
    assert!(lines[1].contains("bytes_sent=7"), "{}", lines[1]);
}
