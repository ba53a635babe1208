//! The part of a torus that a group of devices covers.
//!
//! A job has a box of a pod's devices, joined along two or three axes. Compilers lay the axes of a plan over whole axes of the
//! box, so a group of all devices uses every axis at once and a group as large as one side uses one: a gather is as many times
//! faster as it has axes. An axis that does not close to a ring, and a group that is only a part of one, is a line, whose last
//! device hears from one side alone: half the rate. An exchange between all is held up by the middle of its rings: in a ring of n
//! it takes `n/4` times as long as its bytes do on the two wires of a device, in a line twice that (jax-ml/scaling-book,
//! "Sharded Matrices and How to Multiply Them").

use crate::spec::cluster::Topology;

/// Devices joined to a box.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Torus {
    sides: [Side; AXES],
}

/// An axis of a box, or what a group covers of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Side {
    devices: u64,
    closes: bool,
}

/// How a group lies in a box.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cover {
    sides: [Side; AXES],
}

impl Torus {
    /// The box of `devices` that a job has of a pod, or nothing where devices are not wired as a torus.
    ///
    /// Its sides are as equal as their prime factors allow. Of two axes one closes where it spans the pod; of three where it
    /// is made of whole cubes of four, which optical switches join, and none does of a box smaller than one (Google Cloud,
    /// documentation of TPU v5p).
    pub(super) fn new(topology: Topology, pod: u64, devices: u64) -> Option<Torus> {
        let axes = match topology {
            Topology::Torus2d => 2,
            Topology::Torus3d => 3,
            Topology::Switch | Topology::Mesh | Topology::CubeMesh | Topology::Pcie => return None,
        };
        let longest = boxed(pod, axes).into_iter().max().unwrap_or(1);
        let cubes = devices >= CUBE.pow(3);
        let sides = boxed(devices.min(pod), axes).map(|devices| Side {
            devices,
            closes: if axes == 2 {
                devices == longest && longest >= POD
            } else {
                cubes && devices.is_multiple_of(CUBE)
            },
        });
        Some(Torus { sides })
    }

    /// Where so many members of one group lie: on as many whole axes as multiply to a divisor of them, else on a part of one.
    pub(super) fn cover(&self, members: u64) -> Cover {
        let whole = (1..1_usize << AXES)
            .map(|bits| chosen(&self.sides, bits))
            .filter(|sides| {
                let product: u64 = sides.iter().map(|side| side.devices).product();
                product > 1 && members.is_multiple_of(product)
            })
            .max_by_key(|sides| {
                let long = sides.iter().filter(|side| side.devices > 1).count();
                (long, sides.iter().map(|side| side.devices).product::<u64>())
            });
        let part = [Side { devices: members, closes: false }, POINT, POINT];
        Cover { sides: whole.unwrap_or(part) }
    }
}

/// The axes whose bits are set.
fn chosen(sides: &[Side; AXES], bits: usize) -> [Side; AXES] {
    std::array::from_fn(|axis| if bits >> axis & 1 == 1 { sides[axis] } else { POINT })
}

impl Cover {
    fn long(&self) -> impl Iterator<Item = Side> + '_ {
        self.sides.iter().copied().filter(|side| side.devices > 1)
    }

    /// What a gather, a scatter or a sum reaches of the rate of one closed axis.
    pub(super) fn gathers(&self) -> f64 {
        self.long().map(|side| if side.closes { 1.0 } else { 0.5 }).sum::<f64>().max(0.5)
    }

    /// What an exchange between all reaches of it.
    pub(super) fn exchanges(&self) -> f64 {
        self.long()
            .map(|side| if side.closes { 4.0 } else { 2.0 } / side.devices as f64)
            .fold(self.gathers(), f64::min)
    }

    /// Hops from one end to the other.
    pub(super) fn hops(&self) -> u64 {
        self.long().map(|side| if side.closes { side.devices / 2 } else { side.devices - 1 }).sum()
    }
}

/// Axes of a box; what has two of them has a third of one device.
const AXES: usize = 3;
/// Devices a side of the smallest pod of two axes, those of TPU v2, v5e and v6e: a slice that is a part of one closes none, though a
/// job may have nothing else.
const POD: u64 = 16;
/// Devices a side of the smallest box of three axes that closes.
const CUBE: u64 = 4;
const POINT: Side = Side { devices: 1, closes: false };

/// The sides of a box of so many devices: each prime factor, the largest first, to the side that is shortest so far.
fn boxed(devices: u64, axes: usize) -> [u64; AXES] {
    let mut sides = [1; AXES];
    let mut rest = devices.max(1);
    let mut factors = Vec::new();
    let mut prime = 2;
    while rest > 1 {
        if rest.is_multiple_of(prime) {
            factors.push(prime);
            rest /= prime;
        } else if prime * prime > rest {
            prime = rest;
        } else {
            prime += 1;
        }
    }
    for factor in factors.into_iter().rev() {
        if let Some(side) = sides[..axes].iter_mut().min() {
            *side *= factor;
        }
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_closed_box_use_every_axis() {
        // 16 x 16, all of a pod: two rings of 16. 8 x 8 of it does not close: two lines. Of 8 x 16 one axis closes.
        let covers = [(256, 16), (64, 14), (128, 15)].map(|(devices, hops)| {
            let cover = Torus::new(Topology::Torus2d, 256, devices).unwrap().cover(devices);
            assert_eq!((cover.exchanges(), cover.hops()), (0.25, hops));
            cover.gathers()
        });
        assert_eq!(covers, [2.0, 1.0, 1.5]);
        // 2 x 4, all that a job has.
        assert_eq!(Torus::new(Topology::Torus2d, 8, 8).unwrap().cover(8).gathers(), 1.0);
    }

    #[test]
    fn a_group_as_large_as_one_side_has_one_axis() {
        // 4 x 8 x 8 of cubes of four: a row of four or of eight is a ring, 32 and 64 are planes, two are a line.
        let torus = Torus::new(Topology::Torus3d, 8960, 256).unwrap();
        let gathers = [2, 4, 8, 32, 64, 256].map(|members| torus.cover(members).gathers());
        assert_eq!(gathers, [0.5, 1.0, 1.0, 2.0, 2.0, 3.0]);
        assert_eq!((torus.cover(8).hops(), torus.cover(256).hops()), (4, 10));
    }

    #[test]
    fn a_box_smaller_than_a_cube_does_not_close() {
        // 4 x 4 x 2: two lines of four and one of two, each at half the rate of a ring; four of 4 x 2 x 2 are two lines.
        for (devices, of_four) in [(32, 0.5), (16, 1.0)] {
            let torus = Torus::new(Topology::Torus3d, 8960, devices).unwrap();
            assert_eq!((torus.cover(devices).gathers(), torus.cover(4).gathers()), (1.5, of_four));
        }
    }

    #[test]
    fn four_of_one_host_gather_by_two_wires_each() {
        // A plane of 2 x 2 dies: 178.8 GB/s were measured where a closed axis of two wires has 180 (AI-Hypercomputer/
        // accelerator-microbenchmarks, Ironwood, all_gather on 2x2x1).
        let torus = Torus::new(Topology::Torus3d, 18_432, 8).unwrap();
        assert_eq!(torus.cover(4).gathers(), 1.0);
    }

    #[test]
    fn sides_are_as_equal_as_their_factors_allow() {
        assert_eq!(boxed(6144, 3), [24, 16, 16]);
        assert_eq!(boxed(32, 2), [8, 4, 1]);
        assert_eq!(boxed(7, 2), [7, 1, 1]);
    }

    #[test]
    fn what_is_no_torus_has_none() {
        assert_eq!(Torus::new(Topology::Switch, 8, 8), None);
    }
}
