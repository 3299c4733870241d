//! `culvert delete` and `culvert scale`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

use super::names;
use crate::args::{Delete, Scale};
use crate::client::Client;
use crate::engine::api;
use crate::engine::object::{name, uid};
use crate::output::print;
use crate::state::StateDir;

/// How often it is asked whether a deleted pod is gone.
const ASK: Duration = Duration::from_millis(100);
/// On top of the grace period.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `delete`.
pub(crate) async fn delete(args: &Delete, state: &StateDir) -> Result<ExitCode> {
    let client = Client::new(state);
    let all = names::what(&args.what, &client.kinds().await?)?;
    let mut gone = Vec::new();
    for (kind, object) in all {
        let Some(object) = object else {
            bail!("expected the name of a {kind}")
        };
        let (object, namespace) = names::place(&client, &kind, &object, &args.namespace).await?;
        let answer = client
            .delete((&kind, &namespace, &object), args.grace_period)
            .await?;
        print(format!("{} {object} deleted\n", kind.to_lowercase()));
        if kind == "Pod" {
            gone.push((
                object,
                answer["uid"].as_str().unwrap_or_default().to_owned(),
            ));
        }
    }
    if args.no_wait {
        return Ok(ExitCode::SUCCESS);
    }
    let limit = GONE_TIMEOUT + Duration::from_secs(args.grace_period.unwrap_or(30));
    let deadline = Instant::now() + limit;
    loop {
        let pods = client.objects("Pod", None).await?;
        let left = gone
            .iter()
            .find(|(wanted, id)| pods.iter().any(|pod| name(pod) == wanted && uid(pod) == id));
        let Some((left, _)) = left else {
            return Ok(ExitCode::SUCCESS);
        };
        if Instant::now() >= deadline {
            bail!("pod {left} is still there after {} s", limit.as_secs());
        }
        tokio::time::sleep(ASK).await;
    }
}

/// Runs `scale`.
pub(crate) async fn scale(args: &Scale, state: &StateDir) -> Result<ExitCode> {
    let client = Client::new(state);
    for (kind, object) in names::what(&args.what, &[])? {
        let Some(object) = object else {
            bail!("expected the name of a {kind}")
        };
        let (object, namespace) = names::place(&client, &kind, &object, &args.namespace).await?;
        let scale = api::Scale {
            kind: kind.clone(),
            namespace,
            name: object.clone(),
            replicas: args.replicas,
        };
        client.scale(&scale).await?;
        print(format!(
            "{} {object} scaled to {}\n",
            kind.to_lowercase(),
            args.replicas
        ));
    }
    Ok(ExitCode::SUCCESS)
}
