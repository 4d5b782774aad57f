//! Advice that follows from the numbers. Each piece has a bound below which it is not given.

use std::fmt;

use lowtide_allocator::torch::TorchSettings;
use lowtide_allocator::{Bytes, Category, Policy};

use super::page::grouped;
use super::{Explanation, Failure, Phase, PhaseShare};
use crate::recording::{Recording, Site};

/// Shares of the peak, in thousandths. A category below its share is not mentioned.
const ACTIVATION_PERMILLE: u64 = 400;
const OPTIMIZER_STATE_PERMILLE: u64 = 250;
const GRADIENT_PERMILLE: u64 = 200;
const WORKSPACE_PERMILLE: u64 = 150;
const UNKNOWN_PERMILLE: u64 = 500;
const ROUNDING_PERMILLE: u64 = 50;
const WAITING_PERMILLE: u64 = 20;
/// Peak of reserved bytes, in thousandths of the peak of bytes in use.
const RESERVED_PERMILLE: u64 = 1100;
/// Peak of reserved bytes, in thousandths of the capacity.
const FULL_PERMILLE: u64 = 950;
/// Least number of source calls in the last quarter of the events. Fewer calls may be the last ones
/// of a warm-up.
const SOURCE_CALLS_MIN: u64 = 4;
/// The page size of CUDA's driver, for recordings that do not name theirs.
const PAGE_BYTES: u64 = 2 << 20;

/// A suggestion with the numbers behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// A request failed, although free and cached bytes together would have been enough.
    Fragmentation {
        /// The first such failure.
        failure: Failure,
    },
    /// A request failed because too much was in use.
    Missing {
        /// The failure that lacked the most.
        failure: Failure,
        /// Bytes that the request lacked.
        missing_bytes: u64,
    },
    /// Blocks of a site are allocated throughout and never freed.
    Growth {
        /// The source line of the request.
        site: Site,
        /// The number of blocks.
        blocks: u64,
        /// Bytes of the blocks.
        bytes: u64,
    },
    /// A category takes a large share of the peak.
    Category {
        /// The category; `None` for bytes of unknown category.
        category: Option<Category>,
        /// Bytes of the category.
        bytes: u64,
        /// All bytes in use.
        in_use_bytes: u64,
    },
    /// Much more is reserved than is in use.
    Reserved {
        /// Peak of reserved bytes.
        reserved_bytes: u64,
        /// Peak of bytes in use.
        in_use_bytes: u64,
        /// Peak of reserved bytes for the same requests under the policy `pages`. `None` if this is
        /// the recorded policy, the peak is not lower, or the recording cannot be served.
        pages_bytes: Option<u64>,
        /// Peak of reserved bytes for the same requests under PyTorch's rules with expandable
        /// segments. `None` also if the recording has expandable segments.
        expandable_bytes: Option<u64>,
    },
    /// No category was recorded, but the sites show the phases of the training step.
    Phases {
        /// Blocks at the peak, by phase.
        by_phase: Vec<PhaseShare>,
        /// All bytes in use.
        in_use_bytes: u64,
    },
    /// Rounding of requests takes a large share of the memory.
    Rounding {
        /// Bytes of rounding at the peak.
        rounding_bytes: u64,
        /// Live bytes at the peak.
        live_bytes: u64,
    },
    /// Much of the peak only waits for other streams.
    Waiting {
        /// Bytes that wait for another stream.
        waiting_bytes: u64,
        /// All bytes in use.
        in_use_bytes: u64,
    },
    /// The source is still called, although a steady state needs no call.
    SourceCalls {
        /// Number of calls in the last quarter of the events.
        last_quarter: u64,
        /// Number of calls in all events.
        all: u64,
    },
    /// Hardly any of the capacity is left.
    Full {
        /// Peak of reserved bytes.
        reserved_bytes: u64,
        /// Bytes that may be reserved.
        capacity_bytes: u64,
    },
}

/// The advice that follows from the numbers, in the order of [`Advice`].
pub(super) fn advise(told: &Explanation, recording: &Recording) -> Vec<Advice> {
    let mut advice = failures(told);
    // Blocks of unknown sites have nothing in common.
    let growing = told.unfreed_by_site.iter().filter(|unfreed| unfreed.is_growing());
    advice.extend(growing.filter_map(|unfreed| {
        let site = unfreed.site.clone()?;
        Some(Advice::Growth { site, blocks: unfreed.blocks, bytes: unfreed.bytes })
    }));
    let peak = &told.peak;
    let in_use_bytes = peak.in_use_bytes;
    let mut shares = peak.by_category.clone();
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    for share in shares {
        let bound = match share.category {
            Some(Category::Activation) => ACTIVATION_PERMILLE,
            Some(Category::OptimizerState) => OPTIMIZER_STATE_PERMILLE,
            Some(Category::Gradient) => GRADIENT_PERMILLE,
            Some(Category::Workspace) => WORKSPACE_PERMILLE,
            None => UNKNOWN_PERMILLE,
            Some(_) => continue,
        };
        if !is_at_least(share.bytes, bound, in_use_bytes) {
            continue;
        }
        if share.category.is_none() && !peak.by_phase.is_empty() {
            let by_phase = peak.by_phase.clone();
            advice.push(Advice::Phases { by_phase, in_use_bytes });
        } else {
            let (category, bytes) = (share.category, share.bytes);
            advice.push(Advice::Category { category, bytes, in_use_bytes });
        }
    }
    let page_bytes = if told.page_bytes == 0 { PAGE_BYTES } else { told.page_bytes };
    let paged_bytes = in_use_bytes.checked_next_multiple_of(page_bytes).unwrap_or(in_use_bytes);
    let reserved_bytes = told.reserved_peak_bytes;
    if paged_bytes > 0 && is_at_least(reserved_bytes, RESERVED_PERMILLE, paged_bytes) {
        advice.push(reserved(recording, reserved_bytes, in_use_bytes));
    }
    let (rounding_bytes, live_bytes) = (peak.rounding_bytes(), peak.live_bytes);
    if is_at_least(rounding_bytes, ROUNDING_PERMILLE, live_bytes) {
        advice.push(Advice::Rounding { rounding_bytes, live_bytes });
    }
    let waiting_bytes = peak.waiting_bytes;
    if is_at_least(waiting_bytes, WAITING_PERMILLE, in_use_bytes) {
        advice.push(Advice::Waiting { waiting_bytes, in_use_bytes });
    }
    let last_quarter = told.churn.source_calls_by_quarter[3];
    if last_quarter >= SOURCE_CALLS_MIN {
        advice.push(Advice::SourceCalls { last_quarter, all: told.churn.source_calls });
    }
    let capacity_bytes = told.capacity_bytes;
    if told.failures.is_empty() && is_at_least(reserved_bytes, FULL_PERMILLE, capacity_bytes) {
        advice.push(Advice::Full { reserved_bytes, capacity_bytes });
    }
    advice
}

/// Serves the recording again by other policies, and compares their reserved bytes.
fn reserved(recording: &Recording, reserved_bytes: u64, in_use_bytes: u64) -> Advice {
    let replayed = |policy| {
        let bytes = recording.peak_reserved_bytes_by(policy);
        bytes.filter(|&bytes| bytes < reserved_bytes)
    };
    let is_own = recording.policy == "pages";
    let is_expandable = recording.segment_kinds.values().any(|kind| kind.is_expandable);
    let settings = TorchSettings { expandable_segments: true, ..TorchSettings::default() };
    Advice::Reserved {
        reserved_bytes,
        in_use_bytes,
        pages_bytes: if is_own { None } else { replayed(Policy::Pages) },
        expandable_bytes: if is_own || is_expandable {
            None
        } else {
            replayed(Policy::Torch(settings))
        },
    }
}

fn failures(told: &Explanation) -> Vec<Advice> {
    let mut advice = Vec::new();
    let fragmented = told.failures.iter().find(|failure| failure.is_for_fragmentation());
    advice.extend(fragmented.map(|failure| Advice::Fragmentation { failure: failure.clone() }));
    let missing = |failure: &Failure| {
        let room_bytes = failure.free_bytes.saturating_add(failure.cached_bytes);
        failure.requested_bytes.saturating_sub(room_bytes)
    };
    // Reversed, because `max_by_key` returns the last of several failures that lack the same bytes.
    let most = told.failures.iter().rev().max_by_key(|failure| missing(failure));
    if let Some(failure) = most.filter(|failure| missing(failure) > 0) {
        let missing_bytes = missing(failure);
        advice.push(Advice::Missing { failure: failure.clone(), missing_bytes });
    }
    advice
}

/// True if `whole` is not 0 and `part` is at least `permille` thousandths of it.
fn is_at_least(part: u64, permille: u64, whole: u64) -> bool {
    whole > 0 && u128::from(part) * 1000 >= u128::from(permille) * u128::from(whole)
}

/// A share with one digit after the point.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0.0 %".into();
    }
    // Integer arithmetic rounds alike on every machine.
    let permille = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{} %", permille / 10, permille % 10)
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::Fragmentation { failure } => fmt_fragmentation(failure, f),
            Advice::Missing { failure, missing_bytes } => write!(
                f,
                "A request of {} at event {} lacked {}: {} were in use. Less has to be in use at \
                 that moment, or the capacity must be larger.",
                Bytes(failure.requested_bytes),
                grouped(failure.event),
                Bytes(*missing_bytes),
                Bytes(failure.in_use_bytes),
            ),
            Advice::Growth { site, blocks, bytes } => write!(
                f,
                "{} in {} blocks from {} were allocated in every quarter of the recording and \
                 never freed: something keeps them.",
                Bytes(*bytes),
                grouped(*blocks),
                site.shown(60),
            ),
            Advice::Category { category, bytes, in_use_bytes } => {
                let share = percent(*bytes, *in_use_bytes);
                fmt_category(*category, *bytes, &share, f)
            }
            Advice::Reserved { .. } => self.fmt_reserved(f),
            Advice::Phases { by_phase, in_use_bytes } => fmt_phases(by_phase, *in_use_bytes, f),
            Advice::Rounding { rounding_bytes, live_bytes } => write!(
                f,
                "Rounding takes {} of the live bytes at the peak ({}): fewer and larger blocks \
                 would waste less.",
                percent(*rounding_bytes, *live_bytes),
                Bytes(*rounding_bytes),
            ),
            Advice::Waiting { waiting_bytes, in_use_bytes } => write!(
                f,
                "{} of the peak ({}) had been given back and only waited for other streams: \
                 waiting for them before the peak would lower it.",
                percent(*waiting_bytes, *in_use_bytes),
                Bytes(*waiting_bytes),
            ),
            Advice::SourceCalls { last_quarter, all } => write!(
                f,
                "The source is called to the end: {last_quarter} of {all} calls are in the last \
                 quarter. They cost time; steps of equal sizes need none.",
            ),
            Advice::Full { reserved_bytes, capacity_bytes } => write!(
                f,
                "Only {} of {} were never reserved: any larger request could fail.",
                Bytes(capacity_bytes.saturating_sub(*reserved_bytes)),
                Bytes(*capacity_bytes),
            ),
        }
    }
}

impl Advice {
    fn fmt_reserved(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Advice::Reserved { reserved_bytes, in_use_bytes, pages_bytes, expandable_bytes } = self
        else {
            return Ok(());
        };
        write!(
            f,
            "{} were reserved at most, {} x the {} that were in use at most: the rest are holes \
             and cache.",
            Bytes(*reserved_bytes),
            ratio(*reserved_bytes, *in_use_bytes),
            Bytes(*in_use_bytes),
        )?;
        let by_expandable = expandable_bytes.map(|bytes| ("PyTorch's expandable segments", bytes));
        let by_pages = pages_bytes.map(|bytes| ("the policy pages", bytes));
        for (name, bytes) in [by_expandable, by_pages].into_iter().flatten() {
            write!(f, " Replayed with {name}, it is {}.", Bytes(bytes))?;
        }
        Ok(())
    }
}

fn fmt_phases(
    by_phase: &[PhaseShare],
    in_use_bytes: u64,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "No category was recorded. By the stacks, of the peak were allocated in")?;
    for (index, share) in by_phase.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let place = match share.phase {
            Phase::Forward => "forward passes or setup",
            Phase::Backward => "backward passes",
            Phase::Optimizer => "the optimizer",
            Phase::Unknown => "code that is not known",
        };
        write!(f, "{comma} {place} {}", percent(share.bytes, in_use_bytes))?;
    }
    write!(f, ".")?;
    let forward = by_phase.iter().find(|share| share.phase == Phase::Forward);
    if forward.is_some_and(|share| is_at_least(share.bytes, ACTIVATION_PERMILLE, in_use_bytes)) {
        write!(f, " Smaller micro-batches or checkpointing lower what forward passes keep.")?;
    }
    Ok(())
}

/// A ratio with two digits after the point; 0 if `whole` is 0.
pub(super) fn ratio(part: u64, whole: u64) -> String {
    let hundredths = (u128::from(part) * 100 + u128::from(whole) / 2)
        .checked_div(u128::from(whole))
        .unwrap_or(0);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn fmt_fragmentation(failure: &Failure, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "A request of {} failed at event {} although {} were free and {} cached",
        Bytes(failure.requested_bytes),
        grouped(failure.event),
        Bytes(failure.free_bytes),
        Bytes(failure.cached_bytes),
    )?;
    if let Some(bytes) = failure.largest_hole_bytes {
        write!(f, " (largest hole {})", Bytes(bytes))?;
    }
    write!(f, ": the room was there, but not in one piece. Another placement could serve it.")
}

fn fmt_category(
    category: Option<Category>,
    bytes: u64,
    share: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match category {
        Some(Category::OptimizerState) => write!(
            f,
            "Optimizer state is {share} of the peak ({}): if it is f32, 8-bit state would take \
             about {} less.",
            Bytes(bytes),
            Bytes(bytes - bytes / 4),
        ),
        Some(Category::Gradient) => write!(
            f,
            "Gradients are {share} of the peak ({}): if they are f32, half precision would take \
             about {} less.",
            Bytes(bytes),
            Bytes(bytes / 2),
        ),
        Some(Category::Workspace) => write!(
            f,
            "Workspace is {share} of the peak ({}): a smaller limit for scratch memory, or a \
             leaner algorithm, would lower it.",
            Bytes(bytes),
        ),
        Some(Category::Activation) => write!(
            f,
            "Activations are {share} of the peak ({}): smaller micro-batches or checkpointing \
             would lower it.",
            Bytes(bytes),
        ),
        Some(category) => write!(f, "{category} is {share} of the peak ({}).", Bytes(bytes)),
        None => write!(
            f,
            "No category was recorded for {share} of the peak ({}): only the sites can tell what \
             it is for.",
            Bytes(bytes),
        ),
    }
}
