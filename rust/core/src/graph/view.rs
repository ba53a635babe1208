//! Classes of a variable's values: what a table tells apart of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A class for each value, numbered by first occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The class of each value.
    pub class: Rc<[u32]>,
    /// Classes.
    pub count: usize,
}

impl View {
    /// Each value by itself.
    pub fn whole(values: usize) -> View {
        View { class: (0..values as u32).collect(), count: values }
    }

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

/// Distinct views.
#[derive(Clone, Debug, Default)]
pub(super) struct Views {
    pub(super) all: Vec<View>,
    places: HashMap<View, usize>,
    joints: HashMap<(usize, usize), usize>,
    between: RefCell<HashMap<(usize, usize), Vec<u32>>>,
}

impl Views {
    /// The place of a view.
    pub(super) fn place(&mut self, view: View) -> usize {
        *self.places.entry(view).or_insert_with_key(|view| {
            self.all.push(view.clone());
            self.all.len() - 1
        })
    }

    /// The coarsest view that tells apart what any of some views of one variable does; there is one at least.
    pub(super) fn joint(&mut self, views: Vec<usize>) -> usize {
        views.into_iter().reduce(|a, b| self.both(a.min(b), a.max(b))).unwrap_or_default()
    }

    fn both(&mut self, a: usize, b: usize) -> usize {
        if a == b {
            return a;
        }
        if let Some(&known) = self.joints.get(&(a, b)) {
            return known;
        }
        let pairs = self.all[a].class.iter().zip(self.all[b].class.iter());
        let joint = View::by(pairs.map(|(a, b)| (*a, *b)));
        let place = self.place(joint);
        self.joints.insert((a, b), place);
        place
    }

    /// For each class of a view the class of a coarser one.
    pub(super) fn between(&self, fine: usize, coarse: usize) -> Vec<u32> {
        let mut known = self.between.borrow_mut();
        let classes = known.entry((fine, coarse)).or_insert_with(|| {
            let mut classes = vec![0; self.all[fine].count];
            let values = self.all[fine].class.iter().zip(self.all[coarse].class.iter());
            values.for_each(|(&of, &class)| classes[of as usize] = class);
            classes
        });
        classes.clone()
    }
}
