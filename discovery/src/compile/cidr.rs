//! Ranges of addresses without parts of them.

use ipnet::IpNet;

/// Ranges that together hold what is in `range` but in none of `except`.
pub(super) fn subtract(range: IpNet, except: &[IpNet]) -> Vec<IpNet> {
    let mut rest = vec![range.trunc()];
    for hole in except {
        let hole = hole.trunc();
        rest = rest
            .into_iter()
            .flat_map(|range| without(range, hole))
            .collect();
    }
    rest
}

/// At most one range for each bit of an address.
fn without(range: IpNet, hole: IpNet) -> Vec<IpNet> {
    if hole.contains(&range) {
        return Vec::new();
    }
    if !range.contains(&hole) {
        return vec![range];
    }
    let mut kept = Vec::new();
    let mut current = range;
    while current != hole {
        let Ok(halves) = current.subnets(current.prefix_len() + 1) else {
            break;
        };
        let (inside, outside): (Vec<_>, Vec<_>) = halves.partition(|half| half.contains(&hole));
        kept.extend(outside);
        match inside.first() {
            Some(half) => current = *half,
            None => break,
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn takes_out_parts() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(subtract(net("10.0.0.0/8"), &[]), [net("10.0.0.0/8")]);
        assert_eq!(
            subtract(net("10.0.0.0/8"), &[net("10.0.0.0/9")]),
            [net("10.128.0.0/9")]
        );
        assert_eq!(
            subtract(net("10.0.0.0/8"), &[net("11.0.0.0/8")]),
            [net("10.0.0.0/8")]
        );
        assert_eq!(subtract(net("10.0.0.0/8"), &[net("0.0.0.0/0")]), []);
        assert_eq!(
            subtract(net("10.0.0.0/8"), &[net("fd00::/8")]),
            [net("10.0.0.0/8")]
        );
        assert_eq!(subtract(net("fd00::/8"), &[net("fd00::1/128")]).len(), 120);
    }

    proptest! {
        #[test]
        fn agrees_with_membership(
            range: (u32, u8),
            holes in prop::collection::vec(any::<(u32, u8)>(), 0..4),
            probe: u32,
            near: bool,
        ) {
            let net = |(bits, length): (u32, u8)| {
                IpNet::new(IpAddr::V4(Ipv4Addr::from(bits & 0x0f0f_0f0f)), length % 33).unwrap()
            };
            let range = net(range);
            let holes: Vec<_> = holes.into_iter().map(net).collect();
            let probe = if near { probe & 0x0f0f_0f0f } else { probe };
            let probe = IpAddr::V4(Ipv4Addr::from(probe));
            let expected = range.contains(&probe) && !holes.iter().any(|hole| hole.contains(&probe));
            let rest = subtract(range, &holes);
            prop_assert_eq!(rest.iter().any(|net| net.contains(&probe)), expected);
        }
    }
}
