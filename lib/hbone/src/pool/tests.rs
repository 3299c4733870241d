//! The pool with tunnels over duplexes whose far end accepts every stream.

use super::*;
use crate::client;
use crate::head::ConnectHead;
use crate::server;
use crate::settings::Settings;
use crate::windows::Windows;
use std::cell::Cell;
use std::time::Duration;
use tokio::io::duplex;
use tokio::task::{LocalSet, spawn_local};

type TestPool = Pool<u8, &'static str>;

fn run<F: Future<Output = ()>>(body: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    LocalSet::new().block_on(&runtime.unwrap(), body);
}

async fn tunnel() -> Tunnel {
    let windows = Windows::new(512 << 20);
    let (near, far) = duplex(1 << 16);
    let (tunnel, driver) = client::start(near, &Settings::client(), &windows)
        .await
        .unwrap();
    spawn_local(driver);
    spawn_local(async move {
        let mut server = server::start(far, &Settings::server(), &windows)
            .await
            .unwrap();
        let mut streams = Vec::new();
        while let Some(Ok(request)) = server.next().await {
            streams.push(request.accept(None));
        }
    });
    tunnel
}

fn head() -> ConnectHead {
    ConnectHead {
        authority: "10.0.0.2:80".parse().unwrap(),
        baggage: None,
        forwarded: None,
        traceparent: None,
        keepalive: None,
    }
}

#[test]
fn those_who_wait_share_one_failure_and_the_next_tries_anew() {
    run(async {
        let pool = TestPool::default();
        let attempts = Cell::new(0);
        let fail = || async {
            attempts.set(attempts.get() + 1);
            tokio::time::sleep(Duration::from_secs(2)).await;
            Err("no route")
        };
        let started = tokio::time::Instant::now();
        let (a, b, c) = tokio::join!(
            pool.lease(&1, fail),
            pool.lease(&1, fail),
            pool.lease(&1, fail)
        );
        assert!(a.is_err() && b.is_err() && c.is_err());
        assert_eq!(attempts.get(), 1);
        assert_eq!(started.elapsed(), Duration::from_secs(2));
        assert!(pool.lease(&1, fail).await.is_err());
        assert_eq!(attempts.get(), 2);
        pool.sweep();
        assert!(pool.entries.borrow().is_empty());
    });
}

#[test]
fn an_abandoned_attempt_is_taken_over() {
    run(async {
        let pool = TestPool::default();
        let waiting = pool.clone();
        let first = spawn_local({
            let pool = pool.clone();
            async move { pool.lease(&1, std::future::pending).await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        let second =
            spawn_local(async move { waiting.lease(&1, || async { Ok(tunnel().await) }).await });
        tokio::task::yield_now().await;
        first.abort();
        assert!(second.await.unwrap().is_ok());
    });
}

#[test]
fn one_tunnel_serves_a_hundred_streams_and_then_another_opens() {
    run(async {
        let pool = TestPool::default();
        let connects = Cell::new(0);
        let connect = || async {
            connects.set(connects.get() + 1);
            Ok(tunnel().await)
        };
        let mut streams = Vec::new();
        for i in 0..250 {
            let lease = pool.lease(&1, connect).await.unwrap();
            streams.push(lease.connect(&head()).await.unwrap());
            assert_eq!(connects.get(), i / 100 + 1, "at stream {i}");
        }
        // Freed places are used before another tunnel is opened.
        streams.truncate(150);
        for _ in 0..100 {
            streams.push(
                pool.lease(&1, connect)
                    .await
                    .unwrap()
                    .connect(&head())
                    .await
                    .unwrap(),
            );
        }
        assert_eq!(connects.get(), 3);
        assert_eq!(pool.tunnels(), 3);
        let other = pool.lease(&2, connect).await.unwrap();
        assert_eq!(connects.get(), 4);
        drop(other);
    });
}

#[test]
fn concurrent_callers_wait_for_one_tunnel() {
    run(async {
        let pool = TestPool::default();
        let connects = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..60)
            .map(|_| {
                let (pool, connects) = (pool.clone(), Rc::clone(&connects));
                spawn_local(async move {
                    let lease = pool.lease(&1, || async {
                        connects.set(connects.get() + 1);
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        Ok(tunnel().await)
                    });
                    lease.await.unwrap().connect(&head()).await.unwrap()
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(connects.get(), 1);
    });
}

#[test]
fn closed_tunnels_are_replaced_and_retired_ones_forgotten() {
    run(async {
        let pool = TestPool::default();
        let lease = pool
            .lease(&1, || async { Ok(tunnel().await) })
            .await
            .unwrap();
        drop(lease);
        pool.retire(|key| *key == 1);
        assert_eq!(pool.tunnels(), 0);
        let connects = Cell::new(0);
        let lease = pool.lease(&1, || async {
            connects.set(connects.get() + 1);
            Ok(tunnel().await)
        });
        assert!(lease.await.is_ok());
        assert_eq!(connects.get(), 1);
    });
}
