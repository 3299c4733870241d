//! The real agent and the real plugin, with a node proxy of a few lines, in network
//! namespaces of a node and of pods. Needs root.

#[path = "support/node.rs"]
mod node;

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::process::Command;

use culvert_api::proto::keeper;
use culvert_netns::{SeqPacket, delete_named};
use node::{Node, Proxy, Told, check_redirected, outbound_listener, ruleset, wait_for};
use prost::Message;
use serde_json::{Value, json};

#[test]
fn add_enrolls_and_del_takes_out() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Told::Snapshot);
    let (pod, outside) = (node.pod(1), node.pod(2));
    node.object(&pod, None);
    node.object(&outside, Some("disabled"));
    node.add(&pod);
    assert_eq!(proxy.next(), Proxy::add(&pod));
    check_redirected(&pod);
    assert_eq!(node.wait_enrolled(&pod, true)["annotation"], "true");
    assert!(node.plugin("CHECK", &pod).status.success());
    assert!(node.plugin("STATUS", &pod).status.success());
    node.add(&outside);
    assert_eq!(ruleset(&outside.netns), "");
    let status = node.wait_enrolled(&outside, false);
    assert!(
        status["reason"]
            .as_str()
            .expect("text")
            .contains("disabled"),
        "{status}"
    );
    wait_for("the probe rules of the node", || {
        let rules = ruleset(&node.netns);
        rules.contains(&format!("{} . 8080", pod.ip)).then_some(())
    });
    let metrics = node.metrics();
    let changed = "culvert_cni_rule_applications_total{result=\"changed\"} 1";
    assert!(metrics.contains(changed), "{metrics}");
    let answered = "culvert_cni_add_duration_seconds_count{result=\"not_enrolled\"} 1";
    assert!(metrics.contains(answered), "{metrics}");
    assert!(metrics.contains("culvert_cni_pods_enrolled 1"), "{metrics}");
    assert!(
        metrics.contains("culvert_cni_pods_not_captured 0"),
        "{metrics}"
    );
    assert!(
        metrics.contains("culvert_cni_zds_connections 1"),
        "{metrics}"
    );

    assert!(node.plugin("DEL", &pod).status.success());
    assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
    node.remove_object(&pod);
    wait_for("the status to go", || {
        node.status(&pod).is_none().then_some(())
    });
    wait_for("the probe to go", || {
        let rules = ruleset(&node.netns);
        (!rules.contains("8080")).then_some(())
    });
    assert!(node.plugin("DEL", &pod).status.success(), "twice is fine");
}

#[test]
fn add_waits_for_the_pod_object_and_for_the_proxy() {
    let mut node = Node::started();
    let pod = node.pod(1);
    let waiting = node.start_plugin("ADD", &pod, &[pod.ip]);
    node.object(&pod, None);
    wait_for("the status", || {
        let status = node.status(&pod)?;
        (status["reason"] == "no node proxy is connected").then_some(())
    });
    let proxy = Proxy::start(&node.path("run"), "");
    let output = waiting.wait_with_output().expect("ended");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(proxy.next(), Proxy::add(&pod));
    check_redirected(&pod);
}

#[test]
fn add_fails_for_a_wrong_namespace_and_for_a_proxy_that_cannot() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "no port left");
    let pod = node.pod(1);
    node.object(&pod, None);
    let output = node.plugin_with("ADD", &pod, &[Ipv4Addr::new(10, 9, 1, 77)]);
    let error: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let details = error["details"].as_str().expect("text");
    assert!(
        details.contains("does not have the pod's address 10.9.1.77"),
        "{error}"
    );
    let error = node.refused(&pod);
    assert!(
        error["details"]
            .as_str()
            .expect("text")
            .contains("no port left"),
        "{error}"
    );
    assert_eq!(ruleset(&pod.netns), "", "nothing is redirected to nobody");
    assert_eq!(proxy.next(), Told::Snapshot);
    assert_eq!(proxy.next(), Proxy::add(&pod));
    assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
}

#[test]
fn without_an_agent_pods_wait_and_exempt_namespaces_start() {
    let mut node = Node::started();
    node.kill();
    let pod = node.pod(1);
    node.object(&pod, None);
    assert_eq!(node.refused(&pod)["code"], 11);
    assert!(node.plugin("DEL", &pod).status.success());
    let list = node.path("run/exempt-namespaces");
    let text = std::fs::read_to_string(&list).expect("kept on disk");
    assert!(
        text.contains("kube-system") && text.contains("culvert-system"),
        "{text}"
    );
    std::fs::write(&list, text + "shop\n").expect("written");
    node.add(&pod);
}

#[test]
fn told_to_end_the_agent_answers_who_waits_and_is_gone() {
    let mut node = Node::started();
    let pod = node.pod(1);
    node.object(&pod, None);
    // There is no node proxy, so this waits.
    let waiting = node.start_plugin("ADD", &pod, &[pod.ip]);
    let dumped = wait_for("the sandbox", || {
        let pods = node.config_dump()["agent"]["pods"].take();
        pods[0]["sandbox"].is_object().then(|| pods[0].clone())
    });
    assert_eq!(dumped["uid"], pod.uid);
    assert_eq!(
        (&dumped["member"], &dumped["enrolled"], &dumped["captured"]),
        (&json!(true), &json!(false), &json!(false))
    );
    assert_eq!(dumped["reason"], "no node proxy is connected");
    let mut agent = node.agent.take().expect("running");
    let id = nix::unistd::Pid::from_raw(agent.id().try_into().expect("a process id"));
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).expect("told");
    let answered = waiting.wait_with_output().expect("ended");
    assert!(!answered.status.success(), "{answered:?}");
    // Well before the deadline of its drain: nothing is left to be done.
    let ended = wait_for("its end", || agent.try_wait().expect("a child"));
    assert!(ended.success(), "{ended}");
}

#[test]
fn labels_enroll_and_un_enroll_running_pods() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Told::Snapshot);
    let pod = node.pod(1);
    node.namespace("shop", None);
    node.object(&pod, None);
    node.add(&pod);
    // By the namespace, by the pod, and back, and once more.
    for _ in 0..2 {
        node.namespace("shop", Some("enabled"));
        assert_eq!(proxy.next(), Proxy::add(&pod));
        node.wait_enrolled(&pod, true);
        check_redirected(&pod);
        node.object(&pod, Some("disabled"));
        assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
        node.wait_enrolled(&pod, false);
        assert_eq!(ruleset(&pod.netns), "");
        node.object(&pod, Some("enabled"));
        assert_eq!(proxy.next(), Proxy::add(&pod));
        node.wait_enrolled(&pod, true);
        node.namespace("shop", None);
        node.object(&pod, None);
        assert_eq!(proxy.next(), Told::Delete(pod.uid.clone()));
        node.wait_enrolled(&pod, false);
        assert_eq!(ruleset(&pod.netns), "");
    }
}

#[test]
fn gc_takes_out_what_the_runtime_does_not_have() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Told::Snapshot);
    let (kept, left_over) = (node.pod(1), node.pod(2));
    for pod in [&kept, &left_over] {
        node.object(pod, None);
        node.add(pod);
        assert_eq!(proxy.next(), Proxy::add(pod));
    }
    // All are there: all of them stay.
    assert!(node.collect(&[&kept, &left_over]).status.success());
    for pod in [&kept, &left_over] {
        assert!(node.plugin("CHECK", pod).status.success());
        check_redirected(pod);
    }
    // The runtime has lost one sandbox, and its DEL.
    let collected = node.collect(&[&kept]);
    assert!(collected.status.success(), "{collected:?}");
    assert_eq!(proxy.next(), Told::Delete(left_over.uid.clone()));
    wait_for("the record to go", || {
        let records = std::fs::read_dir(node.path("run/sandboxes")).expect("readable");
        (records.count() == 1).then_some(())
    });
    check_redirected(&kept);
    assert!(node.plugin("CHECK", &kept).status.success());
    // No agent, no garbage: the runtime must not fail over it.
    node.kill();
    assert!(node.collect(&[]).status.success());
}

#[test]
fn a_new_agent_knows_running_pods_and_repairs_their_rules() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    let (pod, other) = (node.pod(1), node.pod(2));
    for one in [&pod, &other] {
        node.object(one, None);
        node.add(one);
    }
    node.kill();
    proxy.stop();
    node.wait_enrolled(&pod, true);
    // Meanwhile: rules get lost, and a pod goes without the agent's knowledge.
    let damage = || {
        Command::new("nft")
            .args(["delete", "table", "inet", "culvert"])
            .status()
    };
    assert!(
        pod.netns
            .run(damage)
            .expect("enter")
            .expect("nft")
            .success()
    );
    node.remove_object(&other);
    delete_named(
        other
            .path
            .file_name()
            .expect("a name")
            .to_str()
            .expect("text"),
    )
    .expect("gone");
    drop(other);
    node.start();
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Proxy::add(&pod));
    assert_eq!(proxy.next(), Told::Snapshot);
    wait_for("the rules", || {
        (!ruleset(&pod.netns).is_empty()).then_some(())
    });
    check_redirected(&pod);
    wait_for("the other record to go", || {
        let records = std::fs::read_dir(node.path("run/sandboxes")).expect("readable");
        (records.count() == 1).then_some(())
    });
}

#[test]
fn the_newest_proxy_gets_pods_and_all_hear_of_their_end() {
    let mut node = Node::started();
    let old = Proxy::start(&node.path("run"), "");
    let pod = node.pod(1);
    node.object(&pod, None);
    node.add(&pod);
    assert_eq!(old.next(), Told::Snapshot);
    assert_eq!(old.next(), Proxy::add(&pod));
    let new = Proxy::start(&node.path("run"), "");
    assert_eq!(new.next(), Proxy::add(&pod));
    assert_eq!(new.next(), Told::Snapshot);
    let second = node.pod(2);
    node.object(&second, None);
    node.add(&second);
    assert_eq!(new.next(), Proxy::add(&second));
    // The old one is told nothing but ends.
    assert!(node.plugin("DEL", &pod).status.success());
    assert_eq!(old.next(), Told::Delete(pod.uid.clone()));
    assert_eq!(new.next(), Told::Delete(pod.uid.clone()));
    // When the new one dies, the old one is told what it missed.
    new.stop();
    assert_eq!(old.next(), Proxy::add(&second));
    assert_eq!(node.wait_enrolled(&second, true)["enrolled"], true);
}

#[test]
fn sockets_outlive_the_proxy_but_not_the_pod() {
    let mut node = Node::started();
    let proxy = Proxy::start(&node.path("run"), "");
    let pod = node.pod(1);
    node.object(&pod, None);
    let ask = |payload: keeper::request::Payload, fds: &[std::os::fd::BorrowedFd<'_>]| {
        let client = SeqPacket::connect(node.path("run/keeper.sock")).expect("connected");
        let request = keeper::Request {
            payload: Some(payload),
        };
        client.send(&request.encode_to_vec(), fds).expect("sent");
        let packet = client.receive(1024).expect("received").expect("an answer");
        let answer = keeper::Answer::decode(&*packet.bytes).expect("an answer");
        (answer, packet.fds)
    };
    let listener = outbound_listener(&pod.netns);
    let put = || {
        let socket = keeper::Socket {
            port: 15001,
            udp: false,
            ipv6: true,
        };
        let put = keeper::Put {
            uid: pod.uid.clone(),
            sockets: vec![socket],
        };
        ask(keeper::request::Payload::Put(put), &[listener.as_fd()])
    };
    let take = || {
        let take = keeper::Take {
            uid: pod.uid.clone(),
        };
        ask(keeper::request::Payload::Take(take), &[])
    };
    assert_eq!(put().0.error, "the pod is not known");
    node.add(&pod);
    assert_eq!(put().0.error, "");
    let (answer, fds) = take();
    assert_eq!((answer.sockets.len(), fds.len()), (1, 1));
    assert_eq!(take().1.len(), 1, "it stays kept");
    let again: TcpListener = fds.into_iter().next().expect("one").into();
    assert_eq!(again.local_addr().expect("bound").port(), 15001);
    assert!(node.plugin("DEL", &pod).status.success());
    wait_for("the sockets to go", || take().1.is_empty().then_some(()));
    assert_eq!(put().0.error, "the pod is not known");
    drop(proxy);
}

#[test]
fn a_proxy_that_does_not_keep_to_the_protocol_is_cut_off() {
    let node = Node::started();
    let path = node.path("run/zds.sock");
    let closed = |first: &[u8], second: Option<&[u8]>| {
        let connection = SeqPacket::connect(&path).expect("connected");
        connection.send(first, &[]).expect("sent");
        let mut snapshot = false;
        loop {
            match connection.receive(1024) {
                Ok(Some(_)) => {
                    assert!(!snapshot, "one request at a time");
                    snapshot = true;
                    if let Some(bytes) = second {
                        connection.send(bytes, &[]).expect("sent");
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    };
    closed(&[0xff, 0xff], None);
    closed(&[8, 7], None);
    // A good hello, then nonsense for an answer.
    closed(&[8, 1], Some(&[0xff]));
    // And the next one is served.
    let proxy = Proxy::start(&node.path("run"), "");
    assert_eq!(proxy.next(), Told::Snapshot);
}
