//! `culvert get`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{names, printers};
use crate::args::{Get, Output};
use crate::client::Client;
use crate::engine::object::{is_cluster_scoped, name};
use crate::output::{print, print_json, yaml};
use crate::state::StateDir;

/// Runs the command.
pub(crate) async fn run(args: &Get, state: &StateDir) -> Result<ExitCode> {
    let client = Client::new(state);
    let wanted = names::what(&args.what, &client.kinds().await?)?;
    let single = wanted.len() == 1 && wanted[0].1.is_some();
    let mut groups: Vec<(String, Vec<Value>)> = Vec::new();
    let mut missing = Vec::new();
    for (kind, typed) in wanted {
        let everywhere = args.scope.all_namespaces || is_cluster_scoped(&kind);
        let mut space = args.scope.namespace.clone();
        let mut wanted_name = typed;
        if let Some(typed) = wanted_name.take() {
            let (found, place) = names::place(&client, &kind, &typed, &space).await?;
            (wanted_name, space) = (Some(found), place);
        }
        let namespace = (!everywhere).then_some(space.as_str());
        let mut objects = client.objects(&kind, namespace).await?;
        if let Some(wanted) = &wanted_name {
            objects.retain(|object| name(object) == wanted);
            if objects.is_empty() {
                missing.push(format!(
                    "{kind} {wanted:?} not found in namespace {space:?}"
                ));
            }
        }
        if let Some(selector) = &args.selector {
            let selects = names::label_selector(selector);
            objects.retain(|object| selects(object));
        }
        match groups.last_mut() {
            Some((last, held)) if *last == kind => held.extend(objects),
            _ => groups.push((kind, objects)),
        }
    }
    show(args, &groups, single);
    for one in &missing {
        eprintln!("error: {one}");
    }
    if !missing.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if groups.iter().all(|(_, objects)| objects.is_empty())
        && matches!(args.output, Output::Table | Output::Wide)
    {
        let place = if args.scope.all_namespaces {
            "in any namespace".to_owned()
        } else {
            format!("in namespace {:?}", args.scope.namespace)
        };
        eprintln!("no objects {place}");
    }
    if groups.is_empty() {
        bail!("expected a kind");
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &Get, groups: &[(String, Vec<Value>)], single: bool) {
    let all = || groups.iter().flat_map(|(_, objects)| objects);
    let as_one = || match (single, all().next()) {
        (true, Some(object)) => object.clone(),
        _ => json!({"apiVersion": "v1", "kind": "List", "items": all().collect::<Vec<_>>()}),
    };
    match args.output {
        Output::Json => print_json(&as_one()),
        Output::Yaml => print(yaml(&as_one())),
        Output::Name => {
            for (kind, objects) in groups {
                for object in objects {
                    print(format!("{}/{}\n", kind.to_lowercase(), name(object)));
                }
            }
        }
        Output::Table | Output::Wide => {
            let filled = groups.iter().filter(|(_, objects)| !objects.is_empty());
            for (index, (kind, objects)) in filled.enumerate() {
                if index > 0 {
                    print("\n");
                }
                let wide = args.output == Output::Wide;
                print(printers::table(
                    kind,
                    objects,
                    args.scope.all_namespaces,
                    wide,
                ));
            }
        }
    }
}
