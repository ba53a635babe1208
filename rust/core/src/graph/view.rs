//! Classes of a node's strategies: what a table tells apart of them.

use std::collections::HashMap;
use std::sync::Arc;

/// A class for each value, numbered by first occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The class of each value.
    pub class: Arc<[u32]>,
    /// Classes.
    pub count: usize,
}

impl View {
    /// Values that have the same key are in one class.
    ///
    /// ```
    /// use autopar_core::graph::view::View;
    /// let view = View::by([7, 3, 7]);
    /// assert_eq!((&*view.class, view.count), (&[0, 1, 0][..], 2));
    /// ```
    pub fn by<K: std::hash::Hash + Eq>(keys: impl IntoIterator<Item = K>) -> View {
        let mut places: HashMap<K, u32> = HashMap::new();
        let class = keys
            .into_iter()
            .map(|key| {
                let next = places.len() as u32;
                *places.entry(key).or_insert(next)
            })
            .collect();
        View { class, count: places.len() }
    }
}
