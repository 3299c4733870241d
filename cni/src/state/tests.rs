//! The state machine against a small world of pods, proxies and work that takes its
//! time, in random order.

mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use world::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn comes_to_rest_as_it_should(steps in prop::collection::vec(step(), 1..120)) {
        let mut run = Run::new();
        for step in steps {
            run.step(step);
        }
        run.rest();
        run.check_at_rest();
    }
}

/// Runs steps in which everything in flight ends well after each of them.
fn settled(steps: &[Step]) -> Run {
    let mut run = Run::new();
    for step in steps {
        run.step(*step);
        while !run.world.in_flight.is_empty() {
            run.finish(0, true);
        }
    }
    run
}

#[test]
fn add_waits_for_the_proxy() {
    let mut run = settled(&[Step::Object(0), Step::Add(0)]);
    assert_eq!(run.world.waiting.len(), 1, "no proxy, no answer");
    assert!(!run.world.sandboxes.values().any(|redirected| *redirected));
    run.step(Step::Connect);
    while !run.world.in_flight.is_empty() {
        run.finish(0, true);
    }
    assert!(run.world.waiting.is_empty());
    assert_eq!(run.state.summary().enrolled, 1);
}

#[test]
fn add_fails_in_time_and_says_why() {
    let mut run = settled(&[Step::Object(0), Step::Add(0)]);
    let request = *run.world.waiting.keys().next().expect("waiting");
    let actions = run.state.handle(Event::AddExpired(request));
    let answer = actions.iter().find_map(|action| match action {
        Action::Answer { answer, .. } => Some(answer.clone()),
        _ => None,
    });
    let expect = AddFault::Expired("no node proxy is connected".to_owned());
    assert_eq!(answer, Some(Err(expect)));
}

#[test]
fn a_dead_proxy_takes_nobody_out_of_the_mesh() {
    let mut run = settled(&[Step::Object(0), Step::Connect, Step::Add(0)]);
    let enrolled = |run: &Run| run.world.statuses["pod-0"].enrolled;
    assert!(enrolled(&run));
    run.step(Step::Disconnect(0));
    assert!(enrolled(&run), "its traffic still cannot go past the proxy");
    assert_eq!(run.state.summary().enrolled, 1);
    run.step(Step::Restart);
    assert!(enrolled(&run));
    while !run.world.in_flight.is_empty() {
        run.finish(0, true);
    }
    assert!(run.world.sandboxes.values().all(|redirected| *redirected));
}

#[test]
fn a_snapshot_names_every_pod_of_an_earlier_agent() {
    let mut run = settled(&[Step::Object(0), Step::Object(2), Step::Connect]);
    for step in [Step::Add(0), Step::Add(2)] {
        run.step(step);
        while !run.world.in_flight.is_empty() {
            run.finish(0, true);
        }
    }
    let records: Vec<Record> = run.world.disk.values().cloned().collect();
    let mut state = State::new(BTreeSet::new());
    let mut actions = state.handle(Event::Restored(records));
    // A proxy may come before the objects have been read, and before the
    // namespaces have been opened: what it is not told of, it stops serving.
    actions.extend(state.handle(Event::Connected(1)));
    actions.extend(state.handle(Event::Objects(Arc::new(run.world.objects.clone()))));
    let mut named = 0;
    let mut due = std::collections::VecDeque::from(actions);
    while let Some(action) = due.pop_front() {
        let event = match action {
            Action::Start {
                uid, attempt, job, ..
            } => Event::JobDone {
                uid,
                attempt,
                outcome: Ok(match job {
                    Job::Open => JobDone::Opened,
                    Job::Install { .. } => JobDone::Installed(Vec::new()),
                    Job::Uninstall => JobDone::Uninstalled,
                }),
            },
            Action::Send {
                connection,
                sequence,
                request,
            } => {
                named += usize::from(matches!(request, Request::Add { .. }));
                let last = request == Request::SnapshotSent;
                assert!(!last || named == 2, "the snapshot came after {named} pods");
                Event::Acknowledged {
                    connection,
                    sequence,
                    error: String::new(),
                }
            }
            _ => continue,
        };
        due.extend(state.handle(event));
    }
    assert!(state.summary().synchronized);
}

/// A restarted agent with the pod `uid-0`, whose namespace it can open as `opened`
/// says, and a proxy: what the proxy is told before the snapshot is complete.
fn told_after_restart(
    record: impl FnOnce(&mut Record),
    objects: &Objects,
    opened: &Result<JobDone, JobFault>,
) -> (State, Vec<Request>) {
    let run = settled(&[Step::Object(0), Step::Connect, Step::Add(0)]);
    let mut records: Vec<Record> = run.world.disk.values().cloned().collect();
    record(&mut records[0]);
    let mut state = State::new(BTreeSet::new());
    let mut due = state.handle(Event::Restored(records));
    due.extend(state.handle(Event::Connected(1)));
    due.extend(state.handle(Event::Objects(Arc::new(objects.clone()))));
    let told = answer_all(&mut state, due, opened);
    (state, told)
}

/// Answers all that comes of the actions: jobs that open as `opened` says,
/// everything else well.
fn answer_all(
    state: &mut State,
    mut due: Vec<Action>,
    opened: &Result<JobDone, JobFault>,
) -> Vec<Request> {
    let mut told = Vec::new();
    while !due.is_empty() {
        let event = match due.remove(0) {
            Action::Start {
                uid, attempt, job, ..
            } => Event::JobDone {
                uid,
                attempt,
                outcome: match job {
                    Job::Open => opened.clone(),
                    Job::Install { .. } => Ok(JobDone::Installed(Vec::new())),
                    Job::Uninstall => Ok(JobDone::Uninstalled),
                },
            },
            Action::Send {
                connection,
                sequence,
                request,
            } => {
                told.push(request);
                Event::Acknowledged {
                    connection,
                    sequence,
                    error: String::new(),
                }
            }
            _ => continue,
        };
        due.extend(state.handle(event));
    }
    told
}

#[test]
fn a_pod_whose_namespace_cannot_be_opened_for_now_is_kept() {
    let fault = |gone| {
        Err(JobFault {
            reason: "too many open files".to_owned(),
            gone,
        })
    };
    let mut objects = Objects::default();
    objects.namespaces.insert("shop".to_owned(), None);
    let without = objects.clone();
    objects.pods.insert(uid(0), facts(0, 1));
    let mut left = without.clone();
    left.pods.insert(uid(0), facts(0, 2));
    let keep = || Request::Keep(uid(0));

    let (_, told) = told_after_restart(|_| {}, &objects, &fault(true));
    assert_eq!(told, [Request::SnapshotSent], "its namespace is gone");
    let never = |record: &mut Record| record.captured = false;
    let (_, told) = told_after_restart(never, &objects, &fault(false));
    assert_eq!(told, [Request::SnapshotSent], "no proxy ever served it");
    let (_, told) = told_after_restart(|_| {}, &left, &fault(false));
    assert_eq!(told, [Request::SnapshotSent], "it has left the mesh");

    let (mut state, told) = told_after_restart(|_| {}, &objects, &fault(false));
    assert_eq!(told, [keep(), Request::SnapshotSent]);
    assert!(state.summary().synchronized);
    // While it stays so, there is nothing more to say.
    let due = state.handle(Event::Retry);
    assert_eq!(answer_all(&mut state, due, &fault(false)), []);
    // Another proxy is told for itself.
    let due = state.handle(Event::Connected(2));
    let told = answer_all(&mut state, due, &fault(false));
    assert_eq!(told, [keep(), Request::SnapshotSent]);
    // Once it can be opened, it is served as every other.
    let due = state.handle(Event::Retry);
    let told = answer_all(&mut state, due, &Ok(JobDone::Opened));
    assert!(
        matches!(&told[..], [Request::Add { uid: added, .. }] if *added == uid(0)),
        "{told:?}"
    );
    let due = state.handle(Event::Removed("sandbox-2".to_owned()));
    let told = answer_all(&mut state, due, &fault(false));
    assert!(told.contains(&Request::Delete(uid(0))), "{told:?}");

    // One that goes while it is only kept is taken from the proxy.
    let (mut state, _) = told_after_restart(|_| {}, &objects, &fault(false));
    let sandboxes = BTreeSet::new();
    let due = state.handle(Event::Retain(sandboxes));
    let told = answer_all(&mut state, due, &fault(false));
    assert_eq!(told, [Request::Delete(uid(0))]);
}

#[test]
fn an_answer_to_nothing_ends_the_connection() {
    let mut run = settled(&[Step::Object(0), Step::Connect, Step::Add(0)]);
    let connection = *run.world.proxies.keys().next().expect("connected");
    let actions = run.state.handle(Event::Acknowledged {
        connection,
        sequence: 0,
        error: String::new(),
    });
    assert_eq!(actions, [Action::Close(connection)]);
}

#[test]
fn pods_outside_the_mesh_need_no_proxy() {
    let run = settled(&[Step::Object(0), Step::Label(0, 2), Step::Add(0)]);
    assert!(run.world.waiting.is_empty());
    assert_eq!(run.state.summary().enrolled, 0);
}
