//! `AuthorizationPolicy`.

use culvert_api::policy::{Action, AncestorReference, AuthorizationPolicySpec, TargetReference};
use culvert_kubeyaml::{Kind, selector::Labels};
use culvert_model::{Group, Origin, Policy, PolicyName, Scope};

use super::{
    Attached, Compiled, Context,
    conditions::{
        AncestorConditions, Condition, ObjectStatus, StatusShape, invalid, namespace_ancestor,
    },
    key,
    rules::{self, Outcome},
};
use crate::index::{Name, PolicyEntry};

/// Compiles every policy, attaches it to pods and writes its status.
pub(super) fn compile<'a>(
    context: Context<'a, '_>,
    compiled: &mut Compiled,
    attached: &mut Attached<'a>,
) {
    for (name, entry) in &context.world.authorization_policies {
        let Some(good) = &entry.good else {
            let status = status_of_invalid(name, entry);
            let key = key(Kind::AuthorizationPolicy, name);
            compiled.statuses.insert(key, status);
            continue;
        };
        let translated = translate(&name.namespace, &good.spec);
        let target = Target::of(&good.spec, name, context);
        let policy_name = PolicyName::new(name.namespace.clone(), name.name.clone());
        if let Some(scope) = target.scope {
            for pod in &target.pods {
                attached
                    .ingress
                    .entry(pod)
                    .or_default()
                    .push(policy_name.clone());
            }
            let policy = policy(
                policy_name.clone(),
                scope,
                &good.spec,
                translated.groups.clone(),
            );
            compiled.policies.insert(policy_name, policy);
        }
        let status = status(entry, &good.spec, &translated, &target);
        compiled
            .statuses
            .insert(key(Kind::AuthorizationPolicy, name), status);
    }
}

fn policy(
    name: PolicyName,
    scope: Scope,
    spec: &AuthorizationPolicySpec,
    groups: Vec<Group>,
) -> Policy {
    let action = match spec.action {
        Action::Allow => culvert_model::Action::Allow,
        Action::Deny | Action::Audit => culvert_model::Action::Deny,
    };
    let audit = spec.action == Action::Audit;
    Policy {
        dry_run: spec.dry_run || audit,
        origin: Some(Origin {
            kind: Kind::AuthorizationPolicy.name().into(),
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            audit,
        }),
        ..Policy::new(name, scope, action, groups)
    }
}

struct Translated {
    groups: Vec<Group>,
    notes: Vec<String>,
    wider: bool,
}

fn translate(namespace: &str, spec: &AuthorizationPolicySpec) -> Translated {
    let rules = spec.rules.iter().enumerate();
    let outcomes = rules.map(|(index, rule)| rules::compile(namespace, spec.action, index, rule));
    let mut translated = Translated {
        groups: Vec::new(),
        notes: Vec::new(),
        wider: false,
    };
    for Outcome { group, note, wider } in outcomes {
        translated.groups.extend(group);
        translated.notes.extend(note);
        translated.wider |= wider;
    }
    translated
}

/// What a policy is attached to.
struct Target<'a> {
    /// None if it is attached to nothing that a node proxy serves.
    scope: Option<Scope>,
    pods: Vec<&'a Name>,
    /// Each object that it names, and why it does not count there.
    ancestors: Vec<(AncestorReference, Option<Condition>)>,
}

impl<'a> Target<'a> {
    fn of(spec: &AuthorizationPolicySpec, name: &Name, context: Context<'a, '_>) -> Self {
        if !spec.target_refs.is_empty() {
            return Self::of_references(&spec.target_refs, name, context);
        }
        let is_root = name.namespace == context.settings.root_namespace;
        let ancestors = vec![(namespace_ancestor(&name.namespace), None)];
        let empty = Labels::new();
        let labels = spec
            .selector
            .as_ref()
            .map_or(&empty, |selector| &selector.match_labels);
        if labels.is_empty() {
            return Self {
                scope: Some(if is_root {
                    Scope::Global
                } else {
                    Scope::Namespace
                }),
                pods: Vec::new(),
                ancestors,
            };
        }
        let namespace = (!is_root).then_some(&*name.namespace);
        Self {
            scope: Some(Scope::WorkloadSelector),
            pods: context
                .pods
                .labelled(namespace, labels)
                .map(|(name, _)| name)
                .collect(),
            ancestors,
        }
    }

    fn of_references(targets: &[TargetReference], name: &Name, context: Context<'a, '_>) -> Self {
        let mut result = Self {
            scope: None,
            pods: Vec::new(),
            ancestors: Vec::new(),
        };
        for target in targets {
            let ancestor = AncestorReference {
                group: target.group.clone(),
                kind: target.kind.clone(),
                namespace: Some(name.namespace.to_string()),
                name: target.name.clone(),
                section_name: target.section_name.clone(),
            };
            let refused = if target.kind == "Service" {
                let service = Name::new(&name.namespace, &target.name);
                result.scope = Some(Scope::WorkloadSelector);
                result.pods.extend(context.members.pods(&service));
                (!context.world.services.contains_key(&service)).then(|| {
                    let message = format!("Service {service} does not exist");
                    Condition::refused("TargetNotFound", message)
                })
            } else {
                let message = format!(
                    "{} {} is not served by a waypoint yet",
                    target.kind, target.name
                );
                Some(Condition::refused("RequiresWaypoint", message))
            };
            result.ancestors.push((ancestor, refused));
        }
        result.pods.sort_unstable();
        result.pods.dedup();
        result
    }
}

fn status(
    entry: &PolicyEntry<AuthorizationPolicySpec>,
    spec: &AuthorizationPolicySpec,
    translated: &Translated,
    target: &Target<'_>,
) -> ObjectStatus {
    let ancestors = target.ancestors.iter().map(|(ancestor, refused)| {
        let refused = refused.clone().or_else(|| {
            let fault = entry.fault.as_ref()?;
            Some(Condition::refused("Invalid", invalid(fault, true)))
        });
        let needs_waypoint = || {
            let notes = translated.notes.join("; ");
            (!notes.is_empty()).then(|| Condition::refused("RequiresWaypoint", notes))
        };
        let counts = refused
            .as_ref()
            .is_none_or(|refused| refused.reason == "Invalid");
        let accepted = refused
            .or_else(needs_waypoint)
            .unwrap_or_else(Condition::accepted);
        let mut conditions = vec![accepted];
        if counts {
            conditions.push(enforced(spec, translated, target));
        } else {
            conditions.push(Condition::enforced(
                false,
                "NotEnforced",
                "nothing is enforced here",
            ));
        }
        AncestorConditions {
            ancestor: ancestor.clone(),
            conditions,
        }
    });
    ObjectStatus {
        generation: entry.generation,
        shape: StatusShape::Ancestors(ancestors.collect()),
    }
}

/// What node proxies do with the policy.
fn enforced(
    spec: &AuthorizationPolicySpec,
    translated: &Translated,
    target: &Target<'_>,
) -> Condition {
    let selects_none = target.scope == Some(Scope::WorkloadSelector) && target.pods.is_empty();
    if spec.action == Action::Audit {
        return Condition::enforced(false, "Audit", "matches are recorded, nothing is refused");
    }
    if spec.dry_run {
        return Condition::enforced(false, "DryRun", "verdicts are recorded, nothing is refused");
    }
    if selects_none {
        return Condition::enforced(false, "NoWorkload", "no workload is selected at present");
    }
    let nothing = translated.groups.is_empty();
    match spec.action {
        Action::Allow if nothing => {
            Condition::enforced(true, "RefusesAll", "no rule is left, so nothing is allowed")
        }
        Action::Allow if !translated.notes.is_empty() => {
            Condition::enforced(true, "Narrowed", "less is allowed than was written")
        }
        Action::Deny if nothing => Condition::enforced(
            false,
            "NotEnforced",
            "no rule is left, so nothing is refused",
        ),
        Action::Deny if translated.wider => {
            Condition::enforced(true, "Widened", "more is refused than was written")
        }
        Action::Deny if !translated.notes.is_empty() => {
            Condition::enforced(true, "Partly", "some rules are not enforced")
        }
        _ => Condition::enforced(true, "Enforced", ""),
    }
}

fn status_of_invalid(name: &Name, entry: &PolicyEntry<AuthorizationPolicySpec>) -> ObjectStatus {
    let fault = entry.fault.as_deref().unwrap_or("unreadable");
    let conditions = vec![
        Condition::refused("Invalid", invalid(fault, false)),
        Condition::enforced(false, "NotEnforced", "nothing is enforced"),
    ];
    ObjectStatus {
        generation: entry.generation,
        shape: StatusShape::Ancestors(vec![AncestorConditions {
            ancestor: namespace_ancestor(&name.namespace),
            conditions,
        }]),
    }
}
