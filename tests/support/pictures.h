#pragma once
// For tests: files of pictures made on the spot, by the libraries themselves.

#include <doctest/doctest.h>
#include <png.h>
#include <stdio.h>

#include <jpeglib.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace cohort::testing {

struct PngForm {
  int type = PNG_COLOR_TYPE_RGB, bits = 8;
  bool interlaced = false;
  bool has_mask = false;  ///< tRNS: the first entry of the palette, or the value 0 of a grey one, is transparent.
};

/// `row(y)` gives the packed bytes of a row; palette entry i is {i, 2 i, 255 - i}.
inline std::string png_file(int width, int height, const PngForm& form, const std::function<std::vector<uint8_t>(int y)>& row) {
  std::string out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  REQUIRE(info);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep data, size_t size) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(data), size);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), form.bits, form.type,
               form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (int i = 0; i < 1 << form.bits && i < 256; ++i)
    palette.push_back({static_cast<png_byte>(i), static_cast<png_byte>(2 * i), static_cast<png_byte>(255 - i)});
  if (form.type == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  const png_byte alpha = 0;
  const png_color_16 grey{};
  if (form.has_mask) png_set_tRNS(png, info, &alpha, 1, form.type == PNG_COLOR_TYPE_PALETTE ? nullptr : &grey);
  png_write_info(png, info);
  std::vector<std::vector<uint8_t>> rows;
  std::vector<png_bytep> pointers;
  for (int y = 0; y < height; ++y) rows.push_back(row(y));
  for (auto& each : rows) pointers.push_back(each.data());
  png_write_image(png, pointers.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return out;
}

/// An RGB picture, or a grey one where each pixel has one value.
inline std::string png_of(int width, int height, const std::function<std::vector<uint8_t>(int x, int y)>& pixel) {
  const bool is_grey = pixel(0, 0).size() == 1;
  return png_file(width, height, {.type = is_grey ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB}, [&](int y) {
    std::vector<uint8_t> row;
    for (int x = 0; x < width; ++x)
      for (const uint8_t value : pixel(x, y)) row.push_back(value);
    return row;
  });
}

struct JpegForm {
  J_COLOR_SPACE space = JCS_RGB;
  int channels = 3;
  bool progressive = false;
};

inline std::string jpeg_file(int width, int height, const JpegForm& form, const std::function<std::vector<uint8_t>(int y)>& row) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's.
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = form.channels;
  info.in_color_space = form.space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (form.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    std::vector<uint8_t> bytes = row(y);
    uint8_t* pointer = bytes.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string out(reinterpret_cast<char*>(memory), size);
  std::free(memory);
  return out;
}

inline std::span<const uint8_t> bytes_of(const std::string& file) { return {reinterpret_cast<const uint8_t*>(file.data()), file.size()}; }

}  // namespace cohort::testing
