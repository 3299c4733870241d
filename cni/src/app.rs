//! Puts the agent together.

use anyhow::Context;
use culvert_netns::Netns;
use culvert_runtime::{ConditionHandle, Process, chain};
use serde_json::Value;

use crate::agent::{Agent, Inbox, Message, Parts};
use crate::config::Config;
use crate::disk::Disk;
use crate::jobs::Node;
use crate::keeper::{self, Keeper};
use crate::metrics::AgentMetrics;
use crate::objects::{DirectorySource, ObjectSource, SourceError};
use crate::redirect::mechanism;
use crate::rules::Mechanism;
use crate::state::Event;
use crate::{admin, server, zds};

/// Runs the agent to its end.
///
/// # Errors
/// When it cannot start, or a part of it failed.
pub async fn run(config: Config, effective: Value) -> anyhow::Result<()> {
    let mut process = Process::start("culvert-cni", env!("CARGO_PKG_VERSION"), &config.process)?;
    let kernel = process.readiness.condition("kernel");
    let objects = process.readiness.condition("objects");
    let node = node().context("this node cannot carry the redirect rules")?;
    kernel.set_ready();
    let keeper = Keeper::default();
    let mut agent = Agent::new(Parts {
        node,
        disk: Disk::open(&config.run_dir, &config.status_dir, &config.exempt)?,
        keeper: keeper.clone(),
        metrics: process.metrics.register(AgentMetrics::register),
        exempt: config.exempt.clone(),
    });
    agent.restore()?;
    let source = DirectorySource::open(&config.objects_dir, &config.node, config.dns)?;
    let cni = server::listen(&config.run_dir.join("cni.sock")).context("cannot open cni.sock")?;
    let proxies = zds::listen(&config.run_dir.join("zds.sock"))?;
    let sockets = keeper::listen(&config.run_dir.join("keeper.sock"))?;
    let inbox = agent.inbox();
    let pages = admin::routes(inbox.clone(), effective.clone());
    let watch = || process.drain.watch();
    let (drain, summary) = (watch(), agent.summary());
    let tasks = &mut process.tasks;
    tasks.critical(
        "objects",
        feed(source, inbox.clone(), objects, drain.clone()),
    );
    tasks.critical("zds", zds::serve(proxies, inbox.clone(), drain.clone()));
    tasks.critical("keeper", keeper::serve(sockets, keeper, drain.clone()));
    let cni = server::serve(cni, inbox, summary, drain.clone());
    let stop = process.drain.clone();
    tasks.critical("agent", async move {
        tokio::try_join!(cni, agent.run(drain))?;
        stop.stop("every request is answered");
        Ok::<_, std::io::Error>(())
    });
    process
        .serve_admin(&config.process, effective, pages)
        .await?;
    process.wait().await?;
    Ok(())
}

/// What this node is and can do. Without nf_tables nothing works, and trying again
/// would not help.
fn node() -> anyhow::Result<Node> {
    let netns = Netns::current()?;
    let kernel = netns.run(culvert_nft::probe)??;
    if mechanism(kernel) == Mechanism::Redirect {
        tracing::warn!(
            ?kernel,
            "the kernel has no tproxy (CONFIG_NFT_TPROXY): connections are redirected by address \
             translation, which is slower"
        );
    }
    if !kernel.socket {
        tracing::warn!(
            "the kernel cannot match sockets (CONFIG_NFT_SOCKET): connections are refused while \
             no node proxy runs"
        );
    }
    Ok(Node { netns, kernel })
}

async fn feed(
    mut source: impl ObjectSource,
    inbox: Inbox,
    ready: ConditionHandle,
    drain: culvert_runtime::DrainWatch,
) -> Result<(), SourceError> {
    loop {
        let objects = tokio::select! {
            objects = source.next() => objects,
            _ = drain.started() => return Ok(()),
        };
        let objects = match objects {
            Ok(objects) => objects,
            Err(error) => {
                ready.set_not_ready(chain(&error));
                return Err(error);
            }
        };
        inbox.send(Message::Event(Event::Objects(objects))).await;
        ready.set_ready();
    }
}
