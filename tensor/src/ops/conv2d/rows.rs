//! Copies of a row of the source, with any step and shift.

use crate::dtype::{Element, convert_slice, is_same_type};

/// Copies every `stride`-th element of `from`, from element `shift` on, and zeros beyond both ends.
#[inline(always)]
pub(super) fn fill_row<E: Element, T: Element>(
    from: &[E],
    stride: usize,
    shift: isize,
    to: &mut [T],
) {
    let left = (-shift).max(0).cast_unsigned().div_ceil(stride).min(to.len());
    let start = (left * stride).saturating_add_signed(shift);
    let from = from.get(start..).unwrap_or_default();
    let count = from.len().div_ceil(stride).min(to.len() - left);
    to[..left].fill(T::ZERO);
    to[left + count..].fill(T::ZERO);
    let to = &mut to[left..][..count];
    match stride {
        1 => convert_slice(&from[..count], to),
        // A stride of 2 is the most frequent and has a form that compiles to vectors.
        2 => {
            let (pairs, last) = from.as_chunks::<2>();
            let len = pairs.len().min(to.len());
            match len {
                16.. => firsts_of::<E, T, 16>(&pairs[..len], &mut to[..len]),
                8.. => firsts_of::<E, T, 8>(&pairs[..len], &mut to[..len]),
                4.. => firsts_of::<E, T, 4>(&pairs[..len], &mut to[..len]),
                _ => to.iter_mut().zip(pairs).for_each(|(to, &pair)| *to = first_of(pair)),
            }
            if let (&[last], Some(to)) = (last, to.get_mut(pairs.len())) {
                *to = converted(last);
            }
        }
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &x)| *to = converted(x)),
    }
}

/// Copies the first number of each pair, in blocks of `N`. There are at least `N` pairs; the last
/// block starts early enough to be whole.
#[inline(always)]
fn firsts_of<E: Element, T: Element, const N: usize>(pairs: &[[E; 2]], to: &mut [T]) {
    for at in (0..to.len()).step_by(N) {
        let at = at.min(to.len() - N);
        let (pairs, to) = (&pairs[at..][..N], &mut to[at..][..N]);
        for index in 0..N {
            to[index] = first_of(pairs[index]);
        }
    }
}

/// [`Element::cast`], but a half type keeps its bits if its type stays.
#[inline(always)]
fn converted<E: Element, T: Element>(x: E) -> T {
    if is_same_type::<E, T>() { bytemuck::cast(x) } else { x.cast() }
}

/// The first number of the pair, converted. For a half type that stays it is the lower half of a
/// word, because every processor with AVX-512 has vectors of words, but not all have vectors of
/// halves.
#[inline(always)]
fn first_of<E: Element, T: Element>(pair: [E; 2]) -> T {
    if is_same_type::<E, T>() && size_of::<E>() == 2 && cfg!(target_endian = "little") {
        bytemuck::cast(bytemuck::cast::<[E; 2], u32>(pair) as u16)
    } else {
        converted(pair[0])
    }
}

/// A lane of type T that holds a pair of numbers of half its size.
#[inline(always)]
pub(super) fn lane<E: Element, T: Element>(pair: [E; 2]) -> T {
    bytemuck::cast(pair)
}
