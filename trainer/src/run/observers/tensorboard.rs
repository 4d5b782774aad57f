//! Event files that TensorBoard shows.
//!
//! A file is a sequence of records, each with its length and checksums (TensorFlow's TFRecord).
//! Each record is an `Event` of `tensorflow/core/util/event.proto`, whose few fields are encoded by
//! hand here.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Result, TrainError};
use crate::run::observer::{EvaluationReport, Flow, Observer, RunStart, StepReport, Training};

/// Longest time between two flushes.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// Writes every number of steps and evaluations to an event file in a folder, where TensorBoard
/// finds it: `tensorboard --logdir FOLDER`. Tags are `train/loss`, `test/accuracy`,
/// `memory/reserved_peak_bytes` and so on. A resumed run adds a file. If a value cannot be written,
/// for example on a full disk, the file ends; a note on standard error reports the end, and the run
/// goes on.
pub struct TensorBoard {
    path: PathBuf,
    /// `None` after an error.
    file: Option<BufWriter<File>>,
    flushed: Instant,
}

impl TensorBoard {
    /// A new event file in `folder`. The folder is created if it does not exist.
    ///
    /// # Errors
    /// `File` if the file cannot be made.
    pub fn create(folder: &Path) -> Result<Self> {
        let failed = |path: &Path, source| TrainError::File { path: path.to_owned(), source };
        fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let process = std::process::id();
        // The file of another run is never reused. TensorBoard sorts files by name.
        let paths = (0..).map(|nth: u32| {
            folder.join(format!("events.out.tfevents.{seconds:010}.lowtide.{process}.{nth}"))
        });
        for path in paths {
            match File::options().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
                Ok(file) => {
                    let mut file = BufWriter::new(file);
                    // Field 3 of an event, in the first record of every file.
                    let head = event(0, |event| text_field(event, 3, "brain.Event:2"));
                    let written = write_record(&mut file, &head).and_then(|()| file.flush());
                    written.map_err(|source| failed(&path, source))?;
                    return Ok(TensorBoard { path, file: Some(file), flushed: Instant::now() });
                }
            }
        }
        unreachable!("there are as many names as one likes")
    }

    /// Path of the event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes values of one moment with their tags.
    fn write_values(&mut self, step: u64, values: &[(String, f64)]) {
        let record = event(step, |event| {
            // Field 5 is a summary, whose field 1 is a value: tag (1) and number (2).
            let mut summary = Vec::new();
            for (tag, number) in values {
                let mut value = Vec::new();
                text_field(&mut value, 1, tag);
                value.push(2 << 3 | 5);
                value.extend((*number as f32).to_le_bytes());
                bytes_field(&mut summary, 1, &value);
            }
            bytes_field(event, 5, &summary);
        });
        self.try_to(|file| write_record(file, &record));
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.flushed = Instant::now();
        self.try_to(BufWriter::flush);
    }

    fn try_to(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let Some(Err(error)) = self.file.as_mut().map(write) else { return };
        // The buffered bytes are dropped; dropping the writer itself would try to write them again.
        drop(self.file.take().map(BufWriter::into_parts));
        let line = format!("note: {}: ends here: {error}", self.path.display());
        drop(writeln!(io::stderr(), "{line}"));
    }
}

impl Observer for TensorBoard {
    fn on_start(&mut self, start: &RunStart, _: &mut dyn Training) -> Result<()> {
        let planned = start.plan.predicted_peak_bytes() as f64;
        let tag = "memory/planned_peak_bytes".to_owned();
        self.write_values(start.steps_before, &[(tag, planned)]);
        self.flush();
        Ok(())
    }

    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        let mut values = vec![
            ("train/loss".to_owned(), report.loss),
            ("train/learning_rate".to_owned(), report.learning_rate),
            ("train/micro_batch".to_owned(), report.micro_batch as f64),
            ("train/samples_per_second".to_owned(), report.batch as f64 / report.seconds),
            ("memory/reserved_peak_bytes".to_owned(), report.reserved_peak_bytes as f64),
            ("memory/retries".to_owned(), report.retries.len() as f64),
        ];
        let turns = report.turn_losses.iter();
        values.extend(turns.map(|(model, loss)| (format!("train/{model}_loss"), *loss)));
        values.extend(report.gradient_norm.map(|norm| ("train/gradient_norm".to_owned(), norm)));
        self.write_values(report.step, &values);
        Ok(Flow::Continue)
    }

    fn on_evaluation(&mut self, report: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        let named = |(set, name, value): (&str, &str, f64)| (format!("{set}/{name}"), value);
        let all = report.scores.iter().flat_map(|(set, score)| {
            score.values().map(move |(name, value)| (set.as_str(), name, value))
        });
        let values: Vec<(String, f64)> = all.map(named).collect();
        self.write_values(report.step, &values);
        self.flush();
        Ok(Flow::Continue)
    }

    fn on_end(&mut self, _: &mut dyn Training) -> Result<()> {
        self.flush();
        Ok(())
    }
}

/// Writes a record with its length and checksums.
fn write_record(file: &mut impl Write, record: &[u8]) -> io::Result<()> {
    let length = (record.len() as u64).to_le_bytes();
    file.write_all(&length)?;
    file.write_all(&masked_checksum(&length).to_le_bytes())?;
    file.write_all(record)?;
    file.write_all(&masked_checksum(record).to_le_bytes())
}

/// An event with the present time (field 1), the step (field 2), and the fields that `rest` adds.
fn event(step: u64, rest: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut event = vec![1 << 3 | 1];
    event.extend(now.to_le_bytes());
    event.push(2 << 3);
    varint(&mut event, step);
    rest(&mut event);
    event
}

fn text_field(message: &mut Vec<u8>, field: u8, text: &str) {
    bytes_field(message, field, text.as_bytes());
}

fn bytes_field(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, bytes.len() as u64);
    message.extend(bytes);
}

/// Appends a number as a varint: seven bits a byte, the lowest bits first.
fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

/// CRC-32C, rotated and offset as TFRecord asks for, because a plain CRC is weak for data that
/// contains CRCs.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// The cyclic redundancy check of Castagnoli's polynomial, reflected (RFC 3720, appendix B.4).
/// Records are short, so one bit at a time is fast enough.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0x82F6_3B78 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        let rising: Vec<u8> = (0..32).collect();
        let cases: [(&[u8], u32); 4] = [
            (b"123456789", 0xE306_9283),
            (&[0; 32], 0x8A91_36AA),
            (&[0xFF; 32], 0x62A8_AB43),
            (&rising, 0x46DD_794E),
        ];
        for (bytes, sum) in cases {
            assert_eq!(crc32c(bytes), sum, "{bytes:?}");
        }
    }

    #[test]
    fn numbers_have_seven_bits_a_byte() {
        let of = |number| {
            let mut bytes = Vec::new();
            varint(&mut bytes, number);
            bytes
        };
        assert_eq!(of(0), [0]);
        assert_eq!(of(127), [127]);
        assert_eq!(of(300), [0xAC, 2]);
        assert_eq!(of(u64::MAX), [[0xFF; 9].as_slice(), &[1]].concat());
    }
}
