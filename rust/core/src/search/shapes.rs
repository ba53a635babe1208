//! What device counts have in common: degrees that differ in their replicas alone.

use super::cell::{divisors, Cell};
use super::devices::Degrees;
use super::octaves::Octaves;
use super::space;
use crate::spec::problem::Problem;
use crate::units::Time;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

/// Degrees but for the replicas, and the replicas that fill counts, ascending.
pub struct Shape {
    /// With one replica.
    pub cell: Cell,
    pub sp: bool,
    pub ep: u64,
    pub members: Vec<Member>,
}

/// Some replicas of a shape, and the limit of their count.
#[derive(Clone, Copy)]
pub struct Member {
    pub dp: u64,
    pub limit: Time,
}

/// The legal shapes of counts, with what their devices might pass within the limits.
pub fn shapes(problem: &Problem, octaves: &Octaves, limits: &FxHashMap<u64, Time>) -> Vec<Shape> {
    let Degrees { pp, tp, cp, dp } = Degrees::of(problem);
    let experts = problem.model.moe.map_or(vec![1], |moe| divisors(u64::from(moe.experts)));
    let choices = [false, true].into_iter().flat_map(|sp| experts.iter().map(move |&ep| (sp, ep)));
    let choices: Vec<(bool, u64)> = choices.collect();
    let tp_of = |&pp: &u64| tp.iter().map(move |&tp| (pp, tp));
    let cp_of = |(pp, tp)| cp.iter().map(move |&cp| Cell { pp, tp, each: None, cp, dp: 1 });
    let most = limits.keys().max().copied().unwrap_or(0);
    let cells: Vec<Cell> =
        pp.iter().flat_map(tp_of).flat_map(cp_of).filter(|cell| devices(cell) <= most).collect();
    let of_cell = |&cell: &Cell| {
        let filling = |&dp: &u64| {
            let filled = filled(&cell, dp);
            let limit = *limits.get(&devices(&filled))?;
            let least = octaves.of(devices(&filled)).throughput.least_of(&filled);
            let legal = least <= limit && space::cut_cell(problem, filled).is_none();
            legal.then_some((filled, limit))
        };
        let fits = |dp: &&u64| devices(&filled(&cell, **dp)) <= most;
        let filling: Vec<(Cell, Time)> = dp.iter().take_while(fits).filter_map(filling).collect();
        let mut shapes = Vec::new();
        for &(sp, ep) in &choices {
            let legal =
                |(cell, _): &&(Cell, Time)| space::cut_any_size(problem, *cell, sp, ep).is_none();
            let members: Vec<Member> = filling
                .iter()
                .filter(legal)
                .map(|&(Cell { dp, .. }, limit)| Member { dp, limit })
                .collect();
            if !members.is_empty() {
                shapes.push(Shape { cell, sp, ep, members });
            }
        }
        shapes
    };
    cells.par_iter().flat_map_iter(of_cell).collect()
}

/// Devices of a cell whose kinds have one degree.
pub fn devices(cell: &Cell) -> u64 {
    cell.pp * cell.tp * cell.cp * cell.dp
}

/// Degrees with so many replicas.
pub fn filled(cell: &Cell, dp: u64) -> Cell {
    Cell { dp, ..*cell }
}
