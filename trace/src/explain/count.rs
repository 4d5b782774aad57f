//! Counts the numbers of an explanation.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use lowtide_allocator::Category;

use super::holes::largest_hole_bytes;
use super::modules::by_module;
use super::{
    CategoryShare, Churn, Explanation, Failure, Group, Moment, Peak, Phase, PhaseShare, SiteShare,
    Transient, Unfreed, Waits, advice,
};
use crate::lifetimes::{BANDS, Levels, Life, Lives, NEVER, band};
use crate::recording::{EventKind, Recording, Site};

/// Length of the longest list in an explanation.
pub(super) const LIST_LEN_MAX: usize = 10;

impl Recording {
    /// Counts the use of memory. Takes a few passes over the events.
    pub fn explain(&self) -> Explanation {
        let lives = Lives::of(self);
        let events = self.events.len();
        let tops = Tops::of(&lives);
        let first_us = self.events.first().map_or(0, |event| event.time_us);
        let last_us = self.events.last().map_or(0, |event| event.time_us);
        let throughout: Vec<&Life> =
            lives.lives.iter().filter(|life| life.is_throughout()).collect();
        let unfreed: Vec<&Life> =
            lives.lives.iter().filter(|life| life.from > 0 && life.to == NEVER).collect();
        let mut explanation = Explanation {
            policy: self.policy.clone(),
            capacity_bytes: self.capacity_bytes,
            page_bytes: self.page_bytes,
            lost_events: self.lost_events,
            events: events as u64,
            duration_us: last_us.saturating_sub(first_us),
            peak: peak(&lives, &tops),
            reserved_peak: moment(tops.reserved.0, events),
            reserved_peak_bytes: tops.reserved.1,
            throughout: group(&throughout),
            throughout_by_category: by_category(&throughout, &[0; BANDS]),
            transients: transients(&lives),
            failures: failures(&lives),
            unfreed: group(&unfreed),
            unfreed_by_site: unfreed_by_site(self, &unfreed),
            churn: churn(&lives),
            waits: waits(&lives, tops.waiting_bytes_max),
            advice: Vec::new(),
        };
        explanation.advice = advice::advise(&explanation, self);
        explanation
    }
}

/// The peaks of a recording.
struct Tops {
    moment: usize,
    levels: Levels,
    /// The moment and the bytes of the peak.
    reserved: (usize, u64),
    waiting_bytes_max: u64,
}

impl Tops {
    fn of(lives: &Lives) -> Tops {
        let mut tops =
            Tops { moment: 0, levels: Levels::default(), reserved: (0, 0), waiting_bytes_max: 0 };
        lives.walk(|moment, levels| {
            if moment == 0 || levels.in_use_bytes() > tops.levels.in_use_bytes() {
                tops.moment = moment;
                tops.levels = levels.clone();
            }
            if levels.reserved_bytes > tops.reserved.1 {
                tops.reserved = (moment, levels.reserved_bytes);
            }
            tops.waiting_bytes_max = tops.waiting_bytes_max.max(levels.waiting_bytes);
        });
        tops
    }
}

fn moment(moment: usize, events: usize) -> Moment {
    let fraction = if events == 0 { 0.0 } else { moment as f64 / events as f64 };
    Moment { event: moment.checked_sub(1).map(|event| event as u64), fraction }
}

fn peak(lives: &Lives, tops: &Tops) -> Peak {
    let live: Vec<&Life> = lives.lives.iter().filter(|life| life.is_live_at(tops.moment)).collect();
    let mut by_site: BTreeMap<Option<u32>, Group> = BTreeMap::new();
    for life in &live {
        by_site.entry(life.site).or_default().add(life);
    }
    let site_count = by_site.len() as u64;
    let mut by_site: Vec<(Option<u32>, Group)> = by_site.into_iter().collect();
    by_site.sort_by_key(|(_, group)| Reverse(group.bytes));
    by_site.truncate(LIST_LEN_MAX);
    let share = |(index, Group { blocks, bytes })| SiteShare {
        site: site(lives.recording, index),
        blocks,
        bytes,
    };
    Peak {
        moment: moment(tops.moment, lives.recording.events.len()),
        in_use_bytes: tops.levels.in_use_bytes(),
        live_bytes: tops.levels.live_bytes,
        live_blocks: tops.levels.live_blocks,
        requested_bytes: tops.levels.requested_bytes,
        charged_bytes: tops.levels.charged_bytes,
        reserved_bytes: tops.levels.reserved_bytes,
        cached_bytes: tops.levels.reserved_bytes.saturating_sub(tops.levels.in_use_bytes()),
        waiting_bytes: tops.levels.waiting_bytes,
        by_category: by_category(&live, &tops.levels.charged_by_band),
        by_phase: by_phase(lives.recording, &live),
        by_site: by_site.into_iter().map(share).collect(),
        by_module: by_module(lives.recording, &live),
        site_count,
    }
}

fn by_phase(recording: &Recording, lives: &[&Life]) -> Vec<PhaseShare> {
    let mut groups = Phase::ALL.map(|phase| PhaseShare { phase, blocks: 0, bytes: 0 });
    for life in lives {
        if life.category.is_some() {
            return Vec::new();
        }
        let site = life.site.and_then(|site| recording.sites.get(site as usize));
        let share = &mut groups[Phase::of(site) as usize];
        share.blocks += 1;
        share.bytes = share.bytes.saturating_add(life.size_bytes);
    }
    let shares: Vec<PhaseShare> = groups.into_iter().filter(|share| share.blocks > 0).collect();
    let tells = shares.iter().any(|share| share.phase != Phase::Unknown);
    if tells { shares } else { Vec::new() }
}

impl Group {
    fn add(&mut self, life: &Life) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(life.size_bytes);
    }
}

fn group(lives: &[&Life]) -> Group {
    let mut group = Group::default();
    lives.iter().for_each(|life| group.add(life));
    group
}

fn by_category(lives: &[&Life], charged_bytes: &[u64; BANDS]) -> Vec<CategoryShare> {
    let mut groups = charged_bytes.map(|bytes| Group { blocks: 0, bytes });
    lives.iter().for_each(|life| groups[band(life.category)].add(life));
    let categories = Category::ALL.into_iter().map(Some).chain([None]);
    let shares = categories.zip(groups).map(|(category, Group { blocks, bytes })| CategoryShare {
        category,
        blocks,
        bytes,
    });
    shares.filter(|share| share.bytes > 0 || share.blocks > 0).collect()
}

fn site(recording: &Recording, index: Option<u32>) -> Option<Site> {
    recording.sites.get(index? as usize).cloned()
}

fn transients(lives: &Lives) -> Vec<Transient> {
    let mut by_site = BTreeMap::new();
    for life in lives.lives.iter().filter(|life| life.is_transient()) {
        let (blocks, largest): &mut (u64, &Life) =
            by_site.entry((life.site, life.category)).or_insert((0, life));
        *blocks += 1;
        if life.size_bytes > largest.size_bytes {
            *largest = life;
        }
    }
    let mut largest: Vec<(u64, &Life)> = by_site.into_values().collect();
    largest.sort_by_key(|(_, life)| (Reverse(life.size_bytes), life.from));
    largest.truncate(LIST_LEN_MAX);
    let describe = |(blocks, life): (u64, &Life)| Transient {
        category: life.category,
        site: site(lives.recording, life.site),
        blocks,
        size_bytes: life.size_bytes,
        allocated_event: life.from as u64 - 1,
        freed_event: life.to as u64 - 1,
    };
    largest.into_iter().map(describe).collect()
}

fn failures(lives: &Lives) -> Vec<Failure> {
    let mut failures = Vec::new();
    lives.walk(|moment, levels| {
        let Some(index) = moment.checked_sub(1) else { return };
        let event = &lives.recording.events[index];
        let EventKind::OutOfMemory { free_bytes } = event.kind else { return };
        // Finding the largest hole undoes all later events. Programs do not survive many failures.
        let is_counted = failures.len() < LIST_LEN_MAX;
        failures.push(Failure {
            event: index as u64,
            requested_bytes: event.size_bytes,
            category: event.category,
            site: site(lives.recording, event.site),
            free_bytes,
            in_use_bytes: levels.in_use_bytes(),
            cached_bytes: levels.reserved_bytes.saturating_sub(levels.in_use_bytes()),
            largest_hole_bytes: is_counted.then(|| largest_hole_bytes(lives, moment)).flatten(),
        });
    });
    failures
}

fn unfreed_by_site(recording: &Recording, lives: &[&Life]) -> Vec<Unfreed> {
    let mut by_site: BTreeMap<Option<u32>, Unfreed> = BTreeMap::new();
    for life in lives {
        let unfreed = by_site.entry(life.site).or_insert_with(|| Unfreed {
            site: site(recording, life.site),
            blocks: 0,
            bytes: 0,
            bytes_by_quarter: [0; 4],
        });
        unfreed.blocks += 1;
        unfreed.bytes = unfreed.bytes.saturating_add(life.size_bytes);
        let quarter = &mut unfreed.bytes_by_quarter[quarter(life.from - 1, recording)];
        *quarter = quarter.saturating_add(life.size_bytes);
    }
    let mut by_site: Vec<Unfreed> = by_site.into_values().collect();
    by_site.sort_by_key(|unfreed| Reverse((unfreed.is_growing(), unfreed.bytes)));
    by_site.truncate(LIST_LEN_MAX);
    by_site
}

fn quarter(event: usize, recording: &Recording) -> usize {
    event * 4 / recording.events.len()
}

fn churn(lives: &Lives) -> Churn {
    let mut churn = Churn::default();
    for life in &lives.lives {
        churn.frees += u64::from(life.to != NEVER);
        if life.from > 0 {
            churn.allocations += 1;
            churn.allocated_bytes = churn.allocated_bytes.saturating_add(life.size_bytes);
        }
    }
    for (index, event) in lives.recording.events.iter().enumerate() {
        if matches!(event.kind, EventKind::Reserve | EventKind::Release) {
            churn.source_calls += 1;
            churn.source_calls_by_quarter[quarter(index, lives.recording)] += 1;
            churn.last_source_call = Some(index as u64);
        }
    }
    churn
}

fn waits(lives: &Lives, waiting_bytes_max: u64) -> Waits {
    let mut streams: Vec<_> = lives.lives.iter().map(|life| life.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    let delayed = lives.lives.iter().filter(|life| life.is_delayed());
    Waits {
        streams: streams.len() as u64,
        delayed_frees: delayed.count() as u64,
        waiting_bytes_max,
    }
}
