//! A hash map that is cheap to clone and to change a little of.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;

/// 64: a change then copies under 2 % of the map, and cloning the map costs 64
/// reference counts, which is nothing beside the change itself.
const SHARDS: usize = 64;

type Shard<K, V> = HashMap<K, V, RandomState>;

/// A map in shards behind reference counts: a clone shares them all, and a
/// change copies only the shards that it touches.
#[derive(Clone)]
pub(crate) struct ShardedMap<K, V> {
    hasher: RandomState,
    shards: Box<[Arc<Shard<K, V>>; SHARDS]>,
}

impl<K: Hash + Eq + Clone, V: Clone> ShardedMap<K, V> {
    pub(crate) fn new() -> Self {
        let hasher = RandomState::default();
        let empty = Arc::new(Shard::with_hasher(hasher.clone()));
        Self {
            hasher,
            shards: Box::new(std::array::from_fn(|_| empty.clone())),
        }
    }

    fn index<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        // The shard's own table uses the lowest and the highest bits.
        (self.hasher.hash_one(key) >> 40) as usize % SHARDS
    }

    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shards[self.index(key)].get(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let index = self.index(&key);
        Arc::make_mut(&mut self.shards[index]).insert(key, value)
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let index = self.index(key);
        if !self.shards[index].contains_key(key) {
            return None;
        }
        Arc::make_mut(&mut self.shards[index]).remove(key)
    }

    /// Edits the list at a key in place; an emptied list takes its key with it.
    pub(crate) fn edit(&mut self, key: &K, edit: impl FnOnce(&mut V))
    where
        V: Default + List,
    {
        let index = self.index(key);
        let shard = Arc::make_mut(&mut self.shards[index]);
        let list = shard.entry(key.clone()).or_default();
        edit(list);
        if list.is_empty() {
            shard.remove(key);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }
}

/// What [`ShardedMap::edit`] needs to know of a value.
pub(crate) trait List {
    fn is_empty(&self) -> bool;
}

impl<T> List for Arc<Vec<T>> {
    fn is_empty(&self) -> bool {
        Vec::is_empty(self)
    }
}

impl<K: Hash + Eq + Clone, V: Clone + PartialEq> PartialEq for ShardedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self
                .iter()
                .all(|(key, value)| other.get(key).is_some_and(|found| found == value))
    }
}

impl<K, V> fmt::Debug for ShardedMap<K, V>
where
    K: Hash + Eq + Clone + fmt::Debug,
    V: Clone + fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_does_not_see_later_changes() {
        let mut map = ShardedMap::new();
        for key in 0..1000 {
            map.insert(key, key);
        }
        let before = map.clone();
        map.insert(7, 0);
        map.remove(&8);
        assert_eq!(
            (before.get(&7), before.get(&8), before.len()),
            (Some(&7), Some(&8), 1000)
        );
        assert_eq!((map.get(&7), map.get(&8), map.len()), (Some(&0), None, 999));
        assert_ne!(before, map);
    }

    #[test]
    fn a_change_copies_one_shard() {
        let mut map = ShardedMap::new();
        for key in 0..1000 {
            map.insert(key, key);
        }
        let before = map.clone();
        map.insert(7, 0);
        map.remove(&5000);
        let copied = before
            .shards
            .iter()
            .zip(map.shards.iter())
            .filter(|(a, b)| !Arc::ptr_eq(a, b));
        assert_eq!(copied.count(), 1);
    }

    #[test]
    fn an_emptied_list_leaves_no_key() {
        let mut map: ShardedMap<u8, Arc<Vec<u8>>> = ShardedMap::new();
        map.edit(&1, |list| Arc::make_mut(list).push(1));
        map.edit(&1, |list| Arc::make_mut(list).clear());
        map.edit(&2, |_| ());
        assert_eq!(map.len(), 0);
    }
}
