//! The ip rules and routes behind the marks.

use std::net::IpAddr;

use netlink_packet_core::ErrorMessage;
use nix::libc;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteScope, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Error, Handle};

use super::Ipv6;
use crate::rules::{MARK_MASK, OUTBOUND_MARK, SPOOFED_MARK};

/// The routing table that has one route: everything is local. Not one of the small
/// numbers that people and other plugins use.
const TABLE: u32 = 1337;
/// Just before the main table; priority 0 (addresses of the pod) comes first.
const RULES: [(u32, u32); 2] = [(SPOOFED_MARK, 32_764), (OUTBOUND_MARK, 32_763)];
/// The loopback interface is the first one of every namespace.
const LOOPBACK_INDEX: u32 = 1;

/// A route or ip rule could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// No netlink socket.
    #[error("cannot open a routing netlink socket")]
    Open(#[source] std::io::Error),
    /// The kernel refused.
    #[error("cannot {verb} the {family} {object}")]
    Refused {
        /// `add` or `remove`.
        verb: &'static str,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// Which rule or route.
        object: String,
        /// The cause.
        #[source]
        source: Box<Error>,
    },
}

/// True when something was missing.
pub(super) fn install(ipv6: Ipv6) -> Result<bool, RouteError> {
    with_handle(async |handle| {
        let mut changed = false;
        for family in families(ipv6) {
            let added = handle.route().add(route(family)).execute().await;
            changed |= added_now(added, family, "route")?;
            for (mark, priority) in RULES {
                let mut request = handle.rule().add();
                *request.message_mut() = rule(family, mark, priority);
                let object = format!("rule for mark {mark:#x}");
                changed |= added_now(request.execute().await, family, &object)?;
            }
        }
        Ok(changed)
    })
}

/// Removes from both families what is there.
pub(super) fn remove() -> Result<(), RouteError> {
    with_handle(async |handle| {
        for family in families(Ipv6::Redirected) {
            for (mark, priority) in RULES {
                let object = format!("rule for mark {mark:#x}");
                let message = || rule(family, mark, priority);
                while removed_now(
                    handle.rule().del(message()).execute().await,
                    family,
                    &object,
                )? {}
            }
            let gone = handle.route().del(route(family)).execute().await;
            removed_now(gone, family, "route")?;
        }
        Ok(())
    })
}

fn families(ipv6: Ipv6) -> Vec<AddressFamily> {
    match ipv6 {
        Ipv6::Redirected => vec![AddressFamily::Inet, AddressFamily::Inet6],
        Ipv6::Absent => vec![AddressFamily::Inet],
    }
}

fn route(family: AddressFamily) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.kind = RouteType::Local;
    message.header.scope = RouteScope::Host;
    message.header.protocol = rtnetlink::packet_route::route::RouteProtocol::Static;
    message.attributes.push(RouteAttribute::Table(TABLE));
    message.attributes.push(RouteAttribute::Oif(LOOPBACK_INDEX));
    message
}

fn rule(family: AddressFamily, mark: u32, priority: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family;
    message.header.action = RuleAction::ToTable;
    message.attributes.extend([
        RuleAttribute::Table(TABLE),
        RuleAttribute::Priority(priority),
        RuleAttribute::FwMark(mark),
        RuleAttribute::FwMask(MARK_MASK),
    ]);
    message
}

fn added_now(
    result: Result<(), Error>,
    family: AddressFamily,
    object: &str,
) -> Result<bool, RouteError> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::NetlinkError(error)) if is(&error, &[libc::EEXIST]) => Ok(false),
        Err(source) => Err(refused("add", family, object, source)),
    }
}

fn removed_now(
    result: Result<(), Error>,
    family: AddressFamily,
    object: &str,
) -> Result<bool, RouteError> {
    // EAFNOSUPPORT and EOPNOTSUPP: the kernel has no such family at all.
    let absent = [
        libc::ENOENT,
        libc::ESRCH,
        libc::ENODEV,
        libc::EAFNOSUPPORT,
        libc::EOPNOTSUPP,
    ];
    match result {
        Ok(()) => Ok(true),
        Err(Error::NetlinkError(error)) if is(&error, &absent) => Ok(false),
        Err(source) => Err(refused("remove", family, object, source)),
    }
}

fn is(error: &ErrorMessage, codes: &[i32]) -> bool {
    codes.contains(&-error.raw_code())
}

fn refused(verb: &'static str, family: AddressFamily, object: &str, source: Error) -> RouteError {
    RouteError::Refused {
        verb,
        family: if family == AddressFamily::Inet {
            "IPv4"
        } else {
            "IPv6"
        },
        object: object.to_owned(),
        source: Box::new(source),
    }
}

/// Runs on a runtime of this thread alone: the socket must belong to this thread's
/// namespace.
fn with_handle<T>(
    work: impl AsyncFnOnce(Handle) -> Result<T, RouteError>,
) -> Result<T, RouteError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(RouteError::Open)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(RouteError::Open)?;
        tokio::select! {
            result = work(handle) => result,
            () = connection => Err(RouteError::Open(std::io::ErrorKind::BrokenPipe.into())),
        }
    })
}

/// Addresses of the calling thread's namespace, to see whether it is a pod's.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn addresses() -> Result<Vec<IpAddr>, RouteError> {
    use futures_util::TryStreamExt;
    use rtnetlink::packet_route::address::AddressAttribute;
    with_handle(async |handle| {
        let mut found = Vec::new();
        let mut dump = handle.address().get().execute();
        loop {
            let message = dump
                .try_next()
                .await
                .map_err(|source| refused("list", AddressFamily::Inet, "addresses", source))?;
            let Some(message) = message else {
                return Ok(found);
            };
            for attribute in message.attributes {
                if let AddressAttribute::Address(ip) | AddressAttribute::Local(ip) = attribute {
                    found.push(ip);
                }
            }
        }
    })
}
