// Decoding is bitwise reproducible: JPEG by the exact integer transform (JDCT_ISLOW) and integer colour conversion, PNG without gamma or
// colour profiles. EXIF orientation is not applied.
//
// Files are untrusted: width times height is checked before memory is allocated; libpng's chunks are bounded and unneeded ones skipped; a
// progressive JPEG may have kMaxScans scans. A warning of libjpeg (truncated or damaged data) is an error, as training would learn from the
// replacement; only extraneous bytes between markers are accepted.

#include "cohort/data/images/picture_file.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>  // Required by jpeglib.h.

#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int kMaxScans = 100;
constexpr int64_t kMaxSide = 1 << 16;
constexpr int64_t kMaxFileBytes = INT64_C(1) << 30, kMaxChunkBytes = INT64_C(1) << 23;
/// A JPEG block of 8 x 8 pixels has at least one bit, the longest match of deflate (258 bytes) two.
constexpr int64_t kMaxJpegPixelsOfByte = 2048, kMaxPngBytesOfByte = 1100;
constexpr uint8_t kPngMagic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/// False, with the reason in `fault`, for invalid sizes. `most_units`: units (pixels or bytes of rows) that a byte of the file can hold.
bool has_fit_size(int64_t height, int64_t width, int64_t units_of_row, int64_t most_units, size_t file_bytes, std::string& fault) {
  if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide || height > kMaxPicturePixels / width) {
    fault =
        concat("has ", width, " x ", height, " pixels, expected sides of 1 to ", kMaxSide, " and at most ", kMaxPicturePixels, " in all");
  } else if (height * units_of_row / most_units > static_cast<int64_t>(file_bytes)) {
    fault = concat("says that it has ", width, " x ", height, " pixels, more than its bytes can hold");
  } else {
    return true;
  }
  return false;
}

/// State of both libraries' decoders, which fail by longjmp: functions in between must not own resources.
struct Decoder {
  std::span<const uint8_t> file;
  bool only_head = false;
  Picture picture;
  std::string fault;
  std::vector<uint8_t> row;
  jmp_buf escape;
};

void separate(const uint8_t* row, int64_t y, int64_t pixel_bytes, Picture& picture) {
  const auto [channels, height, width] = picture.size;
  for (int64_t c = 0; c < channels; ++c) {
    uint8_t* out = picture.bytes.data() + (c * height + y) * width;
    for (int64_t x = 0; x < width; ++x) out[x] = row[x * pixel_bytes + c];
  }
}

struct JpegDecoder : Decoder {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  ~JpegDecoder() { jpeg_destroy_decompress(&info); }
};

JpegDecoder& decoder_of(j_common_ptr info) { return *static_cast<JpegDecoder*>(info->client_data); }

[[noreturn]] void leave_jpeg(j_common_ptr info) {
  char text[JMSG_LENGTH_MAX];
  info->err->format_message(info, text);
  decoder_of(info).fault = concat("cannot be decoded (", text, ")");
  longjmp(decoder_of(info).escape, 1);
}

void take_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code != JWRN_EXTRANEOUS_DATA) leave_jpeg(info);
}

void count_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
  decoder_of(info).fault = concat("has more than ", kMaxScans, " scans");
  longjmp(decoder_of(info).escape, 1);
}

/// False, with the reason in `fault`, on failure.
bool run_jpeg(JpegDecoder& decoder) {
  if (setjmp(decoder.escape)) return false;
  jpeg_decompress_struct& info = decoder.info;
  jpeg_create_decompress(&info);
  info.client_data = &decoder;
  info.progress = &decoder.progress;
  jpeg_mem_src(&info, decoder.file.data(), decoder.file.size());
  jpeg_read_header(&info, TRUE);
  const int64_t height = info.image_height, width = info.image_width;
  if (!has_fit_size(height, width, width, kMaxJpegPixelsOfByte, decoder.file.size(), decoder.fault)) return false;
  if (info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK) {
    decoder.fault = "has the four colours of print (CMYK); convert it to RGB";
    return false;
  }
  const bool is_grey = info.jpeg_color_space == JCS_GRAYSCALE;
  decoder.picture.size = {is_grey ? 1 : 3, height, width};
  if (decoder.only_head) return true;
  info.out_color_space = is_grey ? JCS_GRAYSCALE : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  decoder.picture.bytes.resize(static_cast<size_t>(decoder.picture.size.num_bytes()));
  decoder.row.resize(static_cast<size_t>(info.output_width) * static_cast<size_t>(info.output_components));
  while (info.output_scanline < info.output_height) {
    const int64_t y = info.output_scanline;
    uint8_t* row = decoder.row.data();
    jpeg_read_scanlines(&info, &row, 1);
    separate(row, y, info.output_components, decoder.picture);
  }
  jpeg_finish_decompress(&info);
  return true;
}

bool decode_jpeg(JpegDecoder& decoder) {
  decoder.info.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = leave_jpeg;
  decoder.errors.emit_message = take_message;
  decoder.progress.progress_monitor = count_scans;
  decoder.info.client_data = &decoder;
  return run_jpeg(decoder);
}

struct PngDecoder : Decoder {
  png_structp png = nullptr;
  png_infop info = nullptr;
  size_t at = 0;
  std::vector<uint8_t> whole;  // Of an interlaced file.
  ~PngDecoder() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void leave_png(png_structp png, png_const_charp text) {
  auto& decoder = *static_cast<PngDecoder*>(png_get_error_ptr(png));
  decoder.fault = concat("cannot be decoded (", text, ")");
  longjmp(decoder.escape, 1);
}

void read_png_bytes(png_structp png, png_bytep out, size_t num_bytes) {
  auto& decoder = *static_cast<PngDecoder*>(png_get_io_ptr(png));
  if (num_bytes > decoder.file.size() - decoder.at) png_error(png, "ends too early");
  std::memcpy(out, decoder.file.data() + decoder.at, num_bytes);
  decoder.at += num_bytes;
}

/// Chooses the format of rows: 8 bits, grey or RGB, followed by alpha where the file has it.
void choose_png_form(PngDecoder& decoder) {
  png_structp png = decoder.png;
  const int type = png_get_color_type(png, decoder.info);
  const bool has_mask = png_get_valid(png, decoder.info, PNG_INFO_tRNS) != 0;
  png_set_scale_16(png);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  if (has_mask) png_set_tRNS_to_alpha(png);
}

bool take_png_row(PngDecoder& decoder, const uint8_t* row, int64_t y, int64_t pixel_bytes) {
  const auto [channels, height, width] = decoder.picture.size;
  if (pixel_bytes > channels)
    for (int64_t x = 0; x < width; ++x)
      if (row[x * pixel_bytes + channels] != 255) {
        decoder.fault = concat("is transparent at pixel ", x, ", ", y, "; put it on a background");
        return false;
      }
  separate(row, y, pixel_bytes, decoder.picture);
  return true;
}

bool run_png(PngDecoder& decoder) {
  if (setjmp(decoder.escape)) return false;
  png_structp png = decoder.png;
  png_set_read_fn(png, &decoder, read_png_bytes);
  png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
  png_set_chunk_malloc_max(png, kMaxChunkBytes);
  png_set_chunk_cache_max(png, 16);
  static constexpr png_byte kSkipped[] = "iCCP\0zTXt\0iTXt\0tEXt\0eXIf\0sPLT\0hIST\0cHRM\0gAMA\0sRGB\0pCAL\0sCAL\0pHYs\0oFFs\0tIME\0bKGD";
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, kSkipped, sizeof kSkipped / 5);
  png_read_info(png, decoder.info);
  const int64_t height = png_get_image_height(png, decoder.info), width = png_get_image_width(png, decoder.info);
  const auto packed_bytes = static_cast<int64_t>(png_get_rowbytes(png, decoder.info));
  if (!has_fit_size(height, width, packed_bytes, kMaxPngBytesOfByte, decoder.file.size(), decoder.fault)) return false;
  const int type = png_get_color_type(png, decoder.info);
  const bool is_grey = type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_GRAY_ALPHA;
  decoder.picture.size = {is_grey ? 1 : 3, height, width};
  if (decoder.only_head) return true;
  choose_png_form(decoder);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, decoder.info);
  const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(png, decoder.info));
  const int64_t pixel_bytes = row_bytes / width;
  decoder.picture.bytes.resize(static_cast<size_t>(decoder.picture.size.num_bytes()));
  decoder.row.resize(static_cast<size_t>(row_bytes));
  if (passes > 1) decoder.whole.resize(static_cast<size_t>(row_bytes * height));
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < height; ++y) {
      uint8_t* row = passes > 1 ? decoder.whole.data() + y * row_bytes : decoder.row.data();
      png_read_row(png, row, nullptr);
      if (pass + 1 == passes && !take_png_row(decoder, row, y, pixel_bytes)) return false;
    }
  png_read_end(png, nullptr);
  return true;
}

bool decode_png(PngDecoder& decoder) {
  decoder.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoder, leave_png, [](png_structp, png_const_charp) {});
  decoder.info = decoder.png ? png_create_info_struct(decoder.png) : nullptr;
  if (!decoder.info) decoder.fault = "found no memory";
  return decoder.info && run_png(decoder);
}

bool begins_with(std::span<const uint8_t> file, std::string_view text, size_t at = 0) {
  return file.size() >= at + text.size() && std::memcmp(file.data() + at, text.data(), text.size()) == 0;
}

/// Names other formats for the error message.
std::string name_of_format(std::span<const uint8_t> file) {
  if (begins_with(file, "GIF8")) return "is a GIF";
  if (begins_with(file, "RIFF") && begins_with(file, "WEBP", 8)) return "is a WebP file";
  if (begins_with(file, "BM")) return "is a BMP file";
  if (begins_with(file, "II*") || begins_with(file, "MM")) return "is a TIFF file";
  return "does not begin as a picture does";
}

Picture decode(std::span<const uint8_t> file, const std::string& what, bool only_head) {
  if (file.empty()) fail(ErrorCode::kBadInput, what, " is empty: expected a JPEG or PNG file");
  const auto take = [&](auto& decoder, bool (*decode)(std::remove_reference_t<decltype(decoder)>&), const char* format) {
    decoder.file = file;
    decoder.only_head = only_head;
    if (!decode(decoder)) fail(ErrorCode::kBadInput, what, ": this ", format, " ", printable(decoder.fault), " (", file.size(), " bytes)");
    return std::move(decoder.picture);
  };
  if (file.size() >= 3 && file[0] == 0xff && file[1] == 0xd8 && file[2] == 0xff) {
    JpegDecoder decoder;
    return take(decoder, decode_jpeg, "JPEG");
  }
  if (file.size() >= sizeof kPngMagic && std::memcmp(file.data(), kPngMagic, sizeof kPngMagic) == 0) {
    PngDecoder decoder;
    return take(decoder, decode_png, "PNG");
  }
  fail(ErrorCode::kBadInput, what, " ", name_of_format(file), " (", file.size(), " bytes): expected a JPEG or PNG file");
}

}  // namespace

PictureSize picture_size(std::span<const uint8_t> file, const std::string& what) { return decode(file, what, true).size; }

Picture decode_picture(std::span<const uint8_t> file, const std::string& what) { return decode(file, what, false); }

Picture with_channels(Picture picture, int64_t channels) {
  if (picture.size.channels == channels) return picture;
  const int64_t plane = picture.size.height * picture.size.width;
  Picture out{{channels, picture.size.height, picture.size.width}, std::vector<uint8_t>(static_cast<size_t>(channels * plane))};
  const uint8_t* in = picture.bytes.data();
  if (channels == 1) {
    for (int64_t i = 0; i < plane; ++i)
      out.bytes[static_cast<size_t>(i)] = static_cast<uint8_t>((299 * in[i] + 587 * in[plane + i] + 114 * in[2 * plane + i] + 500) / 1000);
  } else {
    for (int64_t c = 0; c < channels; ++c) std::copy_n(in, plane, out.bytes.data() + c * plane);
  }
  return out;
}

std::vector<uint8_t> read_picture_file(const std::string& path) {
  InputFile file(path);
  if (file.num_bytes() > kMaxFileBytes)
    fail(ErrorCode::kBadInput, path, " has ", file.num_bytes(), " bytes: expected a picture of at most ", kMaxFileBytes);
  std::vector<uint8_t> bytes(static_cast<size_t>(file.num_bytes()));
  bytes.resize(static_cast<size_t>(file.read(bytes.data(), file.num_bytes())));
  return bytes;
}

}  // namespace cohort
