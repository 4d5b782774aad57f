//! An explanation in words, for a terminal of 80 columns.

use std::fmt;

use lowtide_allocator::{Bytes, Category, UNLIMITED_BYTES};

use super::advice::{percent, ratio};
use super::page::{Page, counted, duration, grouped};
use super::{CategoryShare, Explanation, Group, Peak};
use crate::printable::{end, printable};
use crate::recording::Site;

/// Number of lines for sites that never freed, for large blocks and for failures.
const LINES: usize = 5;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut page = Page { f };
        page.paragraph(&self.headline())?;
        if self.lost_events > 0 {
            page.paragraph(&self.lost())?;
        }
        page.blank()?;
        self.fmt_peak(&mut page)?;
        self.fmt_categories(&mut page)?;
        self.fmt_modules(&mut page)?;
        self.fmt_phases(&mut page)?;
        self.fmt_sites(&mut page)?;
        self.fmt_blocks(&mut page)?;
        self.fmt_unfreed(&mut page)?;
        self.fmt_failures(&mut page)?;
        self.fmt_churn(&mut page)?;
        page.heading("What would help")?;
        if self.advice.is_empty() {
            page.paragraph("  Nothing stands out.")?;
        }
        self.advice.iter().try_for_each(|advice| page.item("  - ", &advice.to_string()))
    }
}

impl Explanation {
    /// The explanation in a few sentences, without tables.
    pub(crate) fn paragraphs(&self) -> Vec<String> {
        let peak = &self.peak;
        let mut texts = vec![format!("{} {}", self.headline(), self.peak_sentence())];
        if self.lost_events > 0 {
            texts.push(self.lost());
        }
        if !peak.by_category.is_empty() {
            let mut shares = peak.by_category.clone();
            shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
            texts.push(format!("At the peak: {}.", listed(&shares, peak.in_use_bytes)));
        }
        texts.push(format!(
            "Reserved at the peak: {} ({} x in use, {} cached); at most {}.",
            Bytes(peak.reserved_bytes),
            ratio(peak.reserved_bytes, peak.in_use_bytes),
            Bytes(peak.cached_bytes),
            Bytes(self.reserved_peak_bytes),
        ));
        if let Some(first) = self.failures.first() {
            texts.push(format!(
                "Failed requests: {}; the first asked for {} at event {}, with {} free and {} \
                 cached.",
                grouped(self.failures.len() as u64),
                Bytes(first.requested_bytes),
                grouped(first.event),
                Bytes(first.free_bytes),
                Bytes(first.cached_bytes),
            ));
        }
        texts
    }

    fn headline(&self) -> String {
        let policy = if self.policy.is_empty() { "not known" } else { &self.policy };
        let capacity = match self.capacity_bytes {
            0 => "not known".into(),
            UNLIMITED_BYTES.. => "not limited".into(),
            bytes => Bytes(bytes).to_string(),
        };
        // A recording without times has 0 for each event.
        let within = match self.duration_us {
            0 => String::new(),
            us => format!(" in {}", duration(us)),
        };
        format!(
            "{}{within}; policy {}, capacity {capacity}.",
            counted(self.events, "event"),
            end(&printable(policy), 40),
        )
    }

    fn lost(&self) -> String {
        format!(
            "{} lost before the first one here: blocks of that time count as there from the start.",
            counted(self.lost_events, "event was|events were"),
        )
    }

    fn peak_sentence(&self) -> String {
        let Peak { moment, in_use_bytes, .. } = &self.peak;
        let when = match moment.event {
            None => "before the first event".to_owned(),
            Some(event) => format!(
                "after event {} ({:.1} % of the recording)",
                grouped(event),
                100.0 * moment.fraction
            ),
        };
        format!("Peak: {} in use {when}.", Bytes(*in_use_bytes))
    }

    fn fmt_peak(&self, page: &mut Page) -> fmt::Result {
        let peak = &self.peak;
        page.paragraph(&self.peak_sentence())?;
        let rounding = peak.rounding_bytes();
        let rounded = percent(rounding, peak.live_bytes);
        let blocks = counted(peak.live_blocks, "block");
        let live = format!("{blocks}; rounding takes {} ({rounded})", Bytes(rounding));
        page.row("live", peak.live_bytes, &live)?;
        if self.waits.waiting_bytes_max > 0 && peak.waiting_bytes > 0 {
            page.row("waiting", peak.waiting_bytes, "of them: given back, used by other streams")?;
        }
        if peak.charged_bytes > 0 {
            page.row("charged", peak.charged_bytes, "taken behind the allocator's back")?;
        }
        let times = ratio(peak.reserved_bytes, peak.in_use_bytes);
        let reserved = format!("{times} x in use; {} cached", Bytes(peak.cached_bytes));
        page.row("reserved", peak.reserved_bytes, &reserved)?;
        let when = match self.reserved_peak.event {
            None => "from the start".into(),
            Some(event) => format!("after event {}", grouped(event)),
        };
        let most = match self.capacity_bytes {
            0 | UNLIMITED_BYTES.. => when,
            bytes => {
                format!("{when}; {} of the capacity", percent(self.reserved_peak_bytes, bytes))
            }
        };
        page.row("at most", self.reserved_peak_bytes, &most)
    }

    fn fmt_categories(&self, page: &mut Page) -> fmt::Result {
        let Peak { by_category, in_use_bytes, .. } = &self.peak;
        if by_category.is_empty() {
            return Ok(());
        }
        page.heading("By category at the peak")?;
        for share in by_category {
            page.share(name(share.category), share.bytes, *in_use_bytes)?;
        }
        Ok(())
    }

    fn fmt_phases(&self, page: &mut Page) -> fmt::Result {
        let Peak { by_phase, in_use_bytes, .. } = &self.peak;
        if by_phase.is_empty() {
            return Ok(());
        }
        page.heading("By phase at the peak, inferred from the stacks")?;
        for share in by_phase {
            page.share(&share.phase.to_string(), share.bytes, *in_use_bytes)?;
        }
        Ok(())
    }

    fn fmt_sites(&self, page: &mut Page) -> fmt::Result {
        let Peak { by_site, site_count, in_use_bytes, .. } = &self.peak;
        if by_site.is_empty() {
            return Ok(());
        }
        let shown = by_site.len() as u64;
        let of = if shown == *site_count { "all".into() } else { format!("of {site_count}") };
        page.heading(&format!("By site at the peak ({shown}, {of})"))?;
        for share in by_site {
            let figures = format!(
                "{:>12} {:>7} {:>6} x  ",
                Bytes(share.bytes).to_string(),
                percent(share.bytes, *in_use_bytes),
                share.blocks,
            );
            page.site(&figures, share.site.as_ref())?;
        }
        Ok(())
    }

    fn fmt_modules(&self, page: &mut Page) -> fmt::Result {
        let Peak { by_module, in_use_bytes, .. } = &self.peak;
        if by_module.is_empty() {
            return Ok(());
        }
        page.heading("By module at the peak")?;
        for share in by_module {
            let figures = format!(
                "{:>12} {:>7} {:>6} x  ",
                Bytes(share.bytes).to_string(),
                percent(share.bytes, *in_use_bytes),
                share.blocks,
            );
            let name = if share.module.is_empty() { "(none)" } else { &share.module };
            let named = Site { function: name.to_owned(), ..Site::default() };
            page.site(&figures, Some(&named))?;
        }
        Ok(())
    }

    fn fmt_blocks(&self, page: &mut Page) -> fmt::Result {
        let Group { blocks, bytes } = self.throughout;
        if blocks > 0 {
            page.heading("There from the beginning to the end")?;
            let blocks = counted(blocks, "block");
            let shares = listed(&self.throughout_by_category, bytes);
            page.paragraph(&format!("  {} in {blocks}: {shares}.", Bytes(bytes)))?;
        }
        if self.transients.is_empty() {
            return Ok(());
        }
        page.heading("Came and went: the largest block of each site, and how many there were")?;
        for block in self.transients.iter().take(LINES) {
            let size = Bytes(block.size_bytes).to_string();
            let category = name(block.category);
            let figures = format!("{size:>12} {:>6} x  {category:<16}", block.blocks);
            page.site(&figures, block.site.as_ref())?;
        }
        Ok(())
    }

    fn fmt_unfreed(&self, page: &mut Page) -> fmt::Result {
        if self.unfreed.blocks == 0 {
            return Ok(());
        }
        let Group { blocks, bytes } = self.unfreed;
        let blocks = counted(blocks, "block");
        page.heading(&format!("Allocated here and never freed: {} in {blocks}", Bytes(bytes)))?;
        for unfreed in self.unfreed_by_site.iter().take(LINES) {
            let mark = if unfreed.is_growing() { "grows" } else { "" };
            let size = Bytes(unfreed.bytes).to_string();
            let figures = format!("{size:>12} {:>6} x  {mark:<5}  ", unfreed.blocks);
            page.site(&figures, unfreed.site.as_ref())?;
        }
        Ok(())
    }

    fn fmt_failures(&self, page: &mut Page) -> fmt::Result {
        if self.failures.is_empty() {
            return Ok(());
        }
        page.heading(&format!("Out of memory: {}", counted(self.failures.len() as u64, "time")))?;
        for failure in self.failures.iter().take(LINES) {
            let hole = failure
                .largest_hole_bytes
                .map_or_else(|| "not known".into(), |bytes| Bytes(bytes).to_string());
            let site =
                failure.site.as_ref().map_or("an unknown site".into(), |site| site.shown(50));
            page.item(
                "  - ",
                &format!(
                    "Event {}: {} of {} asked by {site}; {} in use, {} free, {} cached, largest \
                     hole {hole}.",
                    grouped(failure.event),
                    Bytes(failure.requested_bytes),
                    name(failure.category),
                    Bytes(failure.in_use_bytes),
                    Bytes(failure.free_bytes),
                    Bytes(failure.cached_bytes),
                ),
            )?;
        }
        Ok(())
    }

    fn fmt_churn(&self, page: &mut Page) -> fmt::Result {
        let churn = &self.churn;
        page.heading("Coming and going")?;
        page.paragraph(&format!(
            "  {} of {} in all, {}.",
            counted(churn.allocations, "allocation"),
            Bytes(churn.allocated_bytes),
            counted(churn.frees, "free"),
        ))?;
        let calls = match churn.last_source_call {
            None => "  The source was never called.".into(),
            Some(last) => {
                let [first, second, third, fourth] = churn.source_calls_by_quarter.map(grouped);
                format!(
                    "  {} of the source, by quarters {first}, {second}, {third}, {fourth}; the \
                     last one at event {}.",
                    counted(churn.source_calls, "call"),
                    grouped(last),
                )
            }
        };
        page.paragraph(&calls)?;
        if self.waits.delayed_frees > 0 {
            page.paragraph(&format!(
                "  {} waited for other streams, up to {} at once.",
                counted(self.waits.delayed_frees, "free"),
                Bytes(self.waits.waiting_bytes_max),
            ))?;
        }
        Ok(())
    }
}

fn name(category: Option<Category>) -> &'static str {
    category.map_or("unknown", Category::name)
}

fn listed(shares: &[CategoryShare], whole_bytes: u64) -> String {
    let shares: Vec<String> = shares
        .iter()
        .map(|share| {
            let share_of = percent(share.bytes, whole_bytes);
            format!("{} {} ({share_of})", name(share.category), Bytes(share.bytes))
        })
        .collect();
    shares.join(", ")
}
